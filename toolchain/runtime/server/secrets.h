// Keys that open sessions.
#ifndef BOARD_SERVER_SECRETS_H_
#define BOARD_SERVER_SECRETS_H_

#include <string>

namespace board_server {

// What is wrong with a key that shall open sessions; empty if nothing is. It has 256 bits.
std::string SecretProblem(const std::string& key);

// Whether what a stranger shows is the key. How long it takes tells nothing about the key; an empty
// key is none and matches nothing.
bool IsSecret(const std::string& shown, const std::string& key);

// As many hexadecimal digits as a key has, from the kernel's generator. Throws std::runtime_error.
std::string NewSecret();

}  // namespace board_server

#endif  // BOARD_SERVER_SECRETS_H_
