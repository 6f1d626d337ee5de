// See steps.h.
#include <cstdarg>
#include <cstdio>

#include "steps.h"

namespace steps {

bool Reason::Is(const char* format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(text, sizeof text, format, values);
  va_end(values);
  return false;
}

}  // namespace steps
