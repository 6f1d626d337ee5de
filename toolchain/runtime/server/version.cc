// See version.h.
#include "version.h"

#include <sys/utsname.h>
#include <tvm/ffi/extra/json.h>

namespace board_server {

std::string VersionLine() {
  namespace json = tvm::ffi::json;
  using tvm::ffi::String;
  utsname names = {};
  uname(&names);
  const json::Object versions{{String("device"), String(SERVER_VERSION)},
                              {String("tvm"), String(SERVER_TVM_VERSION)},
                              {String("tvm_ffi"), String(SERVER_FFI_VERSION)},
                              {String("machine"), String(names.machine)}};
  return std::string(json::Stringify(versions));
}

}  // namespace board_server
