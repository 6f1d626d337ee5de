// mixed RELEASE: exceptions of a C++ library of its own, beside those that the library has inside.
#include <edge_model.h>

#include <map>
#include <regex>
#include <stdexcept>
#include <string>
#include <thread>

namespace {

int Caught() {
  int caught = 0;
  try {
    std::map<std::string, int>().at("x");
  } catch (const std::exception&) {
    ++caught;
  }
  try {
    std::regex("(");
  } catch (const std::regex_error&) {
    ++caught;
  }
  return caught;
}

}  // namespace

int main(int, char** argv) {
  edge_model* model = nullptr;
  if (Caught() != 2 || edge_open("/no/such", nullptr, &model) != EDGE_RELEASE) return 1;
  if (edge_open(argv[1], nullptr, &model) != EDGE_OK || edge_run(model) != EDGE_OK) return 2;
  edge_close(model);
  int there = 0;
  std::thread([&there] { there = Caught(); }).join();
  return there == 2 ? 0 : 3;
}
