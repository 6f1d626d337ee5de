// A look at a library's ELF header before the dynamic loader trusts it.
#ifndef MODEL_ELF_CHECK_H_
#define MODEL_ELF_CHECK_H_

#include <string>

namespace edge {

// Refuses (kExitLoad) what is no ELF library, is for another machine, or is cut short. The dynamic
// loader maps segments without asking whether the file holds them, and a truncated library would
// end in SIGBUS.
void CheckLibraryFile(const std::string& path);

}  // namespace edge

#endif  // MODEL_ELF_CHECK_H_
