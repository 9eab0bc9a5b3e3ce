// tensorfoldd: the process around Engine::create.
#include "daemon/process.h"

int main(int argc, char** argv) {
  return tensorfold::daemon_main(argc, argv, tensorfold::Engine::create,
                                 tensorfold::planned_memory);
}
