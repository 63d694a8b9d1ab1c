#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "runtime/base/CrashHandlers.h"
#include "runtime/base/Print.h"
#include "runtime/base/RegularFile.h"
#include "runtime/base/StandardStreams.h"
#include "runtime/exec/Measure.h"
#include "runtime/exec/Run.h"
#include "tools/options/Completion.h"
#include "tools/sheaf-run/Options.h"

namespace {

sheaf::exec::RunControl control;
static_assert(std::atomic<bool>::is_always_lock_free);
volatile std::sig_atomic_t lastSignal = SIGTERM;  // another process may have got it

// The first signal asks for an orderly end, a second one like it ends the program at once, as does the first one if the
// run has failed. (Launchers add a SIGTERM of theirs to the terminal's SIGINT.) SIGHUP comes twice when a terminal is
// closed, from the shell and from the system: a second one is ignored.
void onSignal(int signal) {
  control.interrupted = true;
  lastSignal = signal;
  std::signal(signal, signal == SIGHUP && !control.aborting ? SIG_IGN : SIG_DFL);
  if (control.aborting) std::raise(signal);
}

constexpr int kMaxErrorLines = 12;

// Once: a run that is abandoned, or has lost a process, may still report its own error.
void printError(const std::string& message) {
  static std::atomic<bool> printed{false};
  if (printed.exchange(true)) return;
  std::string text = "sheaf-run: error: " + sheaf::shownMessage(message);
  int lines = 0;
  for (size_t i = 0; i < text.size(); ++i)
    if (text[i] == '\n' && ++lines == kMaxErrorLines) text.resize(i);
  sheaf::out::fprintf(stderr, "%s\n", text.c_str());
}

std::string help(sheaf::options::HelpForm form) {
  const sheaf::options::Table& table = sheaf::runTable();
  switch (form) {
    case sheaf::options::HelpForm::kMarkdown:
      return table.markdown();
    case sheaf::options::HelpForm::kManual:
      return table.manual(SHEAF_VERSION, {"sheaf", "sheaf-compile"});
    case sheaf::options::HelpForm::kBash:
      return sheaf::options::bashCompletion("sheaf-run", {&table});
    case sheaf::options::HelpForm::kZsh:
      return sheaf::options::zshCompletion("sheaf-run", {&table});
    case sheaf::options::HelpForm::kShort:
      return table.shortHelp();
    case sheaf::options::HelpForm::kText:
      break;
  }
  return table.help();
}

// The exit status of the program, which ends with `status` if all that it printed was written.
int finish(int status) {
  const sheaf::Status written = sheaf::finishStandardOutput();
  if (written.ok() || status != 0) return status;
  printError(written.message());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  sheaf::openStandardStreams();
  sheaf::installCrashHandlers("sheaf-run");
  sheaf::Expected<sheaf::CommandLine> line = sheaf::parseCommandLine(std::vector<std::string>(argv + 1, argv + argc));
  if (!line.ok()) {
    printError(line.status().message());
    return 2;
  }
  if (line->given.version || line->given.help) {
    std::fputs(line->given.version ? "sheaf-run " SHEAF_VERSION "\n" : help(*line->given.help).c_str(), stdout);
    return finish(0);
  }
  sheaf::allowMostOpenFiles();
  std::signal(SIGTERM, onSignal);
  std::signal(SIGINT, onSignal);
  // Saves on hang-up, unless started by nohup.
  if (std::signal(SIGHUP, onSignal) == SIG_IGN) std::signal(SIGHUP, SIG_IGN);
  // Writing into a closed pipe is an error of that write, not the end of the program.
  std::signal(SIGPIPE, SIG_IGN);
  // `mpirun -disable-auto-cleanup` of MPICH says so that another process has died. It would end this one silently.
  std::signal(SIGUSR1, SIG_IGN);
  // On GPUs the error waits for what it can say more: where this process was, and whether its GPU lets go.
  if (line->run.device != "cuda") control.lost = printError;
  control.abandon = [](const std::string& why) {
    printError(why);
    _exit(1);
  };
  control.commandToResume = [command = std::vector<std::string>(argv, argv + argc)](const std::string& folder) {
    return sheaf::commandToResume(command, folder);
  };
  const auto run = line->run.measure.empty() ? sheaf::exec::run : sheaf::exec::measure;
  if (sheaf::Status status = run(line->run, control); !status.ok()) {
    printError(status.message());
    return finish(1);
  }
  // As of a program that the signal ends: a script or a launcher must not take the training for complete.
  return finish(control.endedEarly ? 128 + lastSignal : 0);
}
