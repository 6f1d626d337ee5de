// Marks the functions that the library of the host has.
#ifndef STEPS_HOST_H_
#define STEPS_HOST_H_

#define HOST_API __attribute__((visibility("default")))

#endif  // STEPS_HOST_H_
