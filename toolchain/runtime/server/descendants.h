// What sessions start, also what has left their process groups.
#ifndef BOARD_SERVER_DESCENDANTS_H_
#define BOARD_SERVER_DESCENDANTS_H_

namespace board_server {

// Makes this process the parent of its descendants whose own parent has ended: who does setsid() or
// a double fork stays one of them. Logs it where the system, or an emulator, has no such thing.
void AdoptDescendants();

// Kills all descendants of this process and waits until none is left, at most for some seconds: one
// that hangs in a driver ends when the driver lets go of it.
void EndDescendants();

}  // namespace board_server

#endif  // BOARD_SERVER_DESCENDANTS_H_
