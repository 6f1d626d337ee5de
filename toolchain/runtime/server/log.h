// One line an event on stderr, with the time.
#ifndef BOARD_SERVER_LOG_H_
#define BOARD_SERVER_LOG_H_

#include <cstdint>
#include <string>

namespace board_server {

void Log(const std::string& text);

// The same with the words of an errno value.
void LogErrno(const std::string& what, int error);

// Milliseconds of a clock that nobody sets.
int64_t Now();

// What strangers sent, cut short and without control characters.
std::string Printable(const std::string& text);

// 5 or 0.25, without zeros at the end.
std::string Seconds(double seconds);

}  // namespace board_server

#endif  // BOARD_SERVER_LOG_H_
