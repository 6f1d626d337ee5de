// What the board is, and how it is right now.
#ifndef BOARD_SERVER_HARDWARE_H_
#define BOARD_SERVER_HARDWARE_H_

#include <string>

namespace board_server {

// {"machine": ..., "cpus": ..., "cpu": ..., "features": [...], "cache_kib": {"l1d": ...},
// "memory_kib": ...}: the CPUs that this process may use, the first CPU's name ("" if the kernel
// tells none) and features, and the sizes of its caches as far as the kernel tells them.
std::string HardwareLine();

// {"celsius": ..., "mhz": ..., "waited_s": ...}: the hottest thermal zone, the mean clock of the CPUs
// that this process may use, and the seconds that its threads have waited for a CPU, all in all;
// null where the kernel does not tell.
std::string ConditionsLine();

}  // namespace board_server

#endif  // BOARD_SERVER_HARDWARE_H_
