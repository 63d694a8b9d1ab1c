#include "tools/sheaf-run/Options.h"

#include <functional>
#include <map>
#include <set>

#include "runtime/base/Text.h"
#include "runtime/exec/StepScalars.h"
#include "runtime/plan/Words.h"

namespace sheaf {

const char kHelp[] = R"(Runs a training plan made by `sheaf compile`.

usage: sheaf-run PLAN --data NAME=FILE... --steps K [options]
       sheaf-run PROBE --measure P.json [options]

data
  --data NAME=FILE.npy      rows of an input; step s reads rows [s*B, (s+1)*B) of the global batch B, wrapping at the end
  --data NAME=TOKENS[:u16]  raw tokens (u8, u16, u32, i32, i64; .bin is u16 or llm.c's format), a row as long as the input
  --data NAME,LABELS=TOKENS the same, and the labels are the tokens shifted by one
  --steps K                 steps of this run
  --shuffle SEED            another order of the rows in every pass over the data

weights and state
  --weights W.safetensors   initial weights by name, instead of those that the plan names
  --weights-dir DIR         where the weight files that the plan names are now
  --save W.safetensors      the whole weights, after the last step
  --save-state DIR          weights, optimizer state and position into DIR/step-N, after the last step
  --save-every K            and every K steps
  --resume DIR              go on from the newest valid state in DIR; any number of ranks and any stage

training
  --lr RATE                 instead of the plan's learning rate
  --lr-schedule SCHEDULE    constant | cosine:warmup=W,steps=S,min=M, instead of the plan's

running and looking
  --device cpu|cuda         what to run on, if the plan was compiled for both; its first target if not given
  --reduce-order rank|ring  between GPUs: sums in rank order, the same bits on any number of them, or as NCCL likes it
  --no-graphs               launch each instruction on its own, not steps as CUDA graphs
  --tuned FILE              on GPUs: choose the algorithms of matrix products by this table; if there is no such file, the
                            products are measured first and it is written
  --threads-per-rank T      compute threads of each rank; the machine's cores shared out if not given
  --log RUN.jsonl           one JSON object a step: step, loss, grad_norm, lr, seconds; other objects have "event"
  --trace T.json            when each instruction of the last 16 steps ran, for chrome://tracing or Perfetto
  --dump-gradients G.safetensors  the first step's gradients
  --measure P.json          with a probe of `sheaf profile --target`: measure the device for `sheaf simulate`; goes with
                            --device, --reduce-order, --no-graphs, --tuned and --threads-per-rank
  --unproved                run a plan without digests, too: nothing then tells whether it is what was compiled
  --poison                  fill arenas with a pattern first, and log the highest byte that was touched
  --help, --version

Several processes that torchrun, mpirun or srun starts with the same command share the plan's ranks; SHEAF_RENDEZVOUS=host:port
says where they meet, SHEAF_TIMEOUT=seconds how long they wait for each other. See docs/cluster.md.
)";

namespace {

Status positive(const std::string& option, const std::string& text, int64_t& value) {
  if (parseInteger(text, value) && value > 0 && value <= int64_t{1} << 48) return {};
  return Status::error(cat(option, " ", text, ": expected a positive integer"));
}

// Options with a value, and what each does with it.
using Setter = std::function<Status(const std::string& value)>;

std::map<std::string, Setter> settersFor(exec::RunOptions& run) {
  auto path = [](std::string& member) {
    return [&member](const std::string& value) {
      member = value;
      return value.empty() ? Status::error("expected a path, got nothing") : Status();
    };
  };
  std::map<std::string, Setter> setters;
  setters["--weights"] = path(run.weights);
  setters["--weights-dir"] = path(run.weightsFolder);
  setters["--save"] = path(run.save);
  setters["--save-state"] = path(run.saveState);
  setters["--resume"] = path(run.resume);
  setters["--log"] = path(run.log);
  setters["--dump-gradients"] = path(run.gradients);
  setters["--trace"] = path(run.trace);
  setters["--measure"] = path(run.measure);
  setters["--tuned"] = path(run.tuned);
  setters["--steps"] = [&run](const std::string& value) { return positive("--steps", value, run.steps); };
  setters["--save-every"] = [&run](const std::string& value) { return positive("--save-every", value, run.saveEvery); };
  setters["--threads-per-rank"] = [&run](const std::string& value) {
    return positive("--threads-per-rank", value, run.threadsPerRank);
  };
  setters["--device"] = [&run](const std::string& value) {
    run.device = value;
    return value == "cpu" || value == "cuda" ? Status()
                                             : Status::error(cat("--device ", value, ": expected cpu or cuda"));
  };
  setters["--reduce-order"] = [&run](const std::string& value) {
    return plan::parseWord("--reduce-order", value, run.reduceOrder.emplace());
  };
  setters["--shuffle"] = [&run](const std::string& value) {
    int64_t seed = 0;
    if (!parseInteger(value, seed)) return Status::error(cat("--shuffle ", value, ": expected an integer"));
    run.shuffleSeed = seed;
    return Status();
  };
  setters["--lr"] = [&run](const std::string& value) {
    double rate = 0;
    if (!parseReal(value, rate) || rate < 0)
      return Status::error(cat("--lr ", value, ": expected a number, 0 or more"));
    run.learningRate = rate;
    return Status();
  };
  setters["--lr-schedule"] = [&run](const std::string& value) {
    Expected<plan::Schedule> schedule = exec::parseSchedule(value);
    if (!schedule.ok()) return schedule.status();
    run.schedule = *schedule;
    return Status();
  };
  setters["--data"] = [&run](const std::string& value) {
    Expected<io::DataArgument> argument = io::parseDataArgument(value);
    if (!argument.ok()) return argument.status();
    run.data.push_back(*argument);
    return Status();
  };
  return setters;
}

Status unknown(const std::string& option, const std::map<std::string, Setter>& setters) {
  std::vector<std::string> names{"--poison", "--unproved", "--no-graphs", "--help", "--version"};
  for (const auto& entry : setters) names.push_back(entry.first);
  std::string near = nearest(option, names);
  return Status::error(
      cat("unknown option ", option, near.empty() ? "; see sheaf-run --help" : cat("; did you mean ", near, "?")));
}

// Whether an option is heeded where nothing is trained.
bool isForMeasuring(const std::string& option) {
  static const std::set<std::string> kOptions{"--measure", "--device",           "--reduce-order", "--no-graphs",
                                              "--tuned",   "--threads-per-rank", "--unproved"};
  return kOptions.count(option) > 0;
}

Status checkComplete(const exec::RunOptions& run, const std::set<std::string>& given) {
  if (!run.measure.empty()) {
    if (run.plan.empty()) return Status::error("no probe is given; usage: sheaf-run PROBE --measure P.json");
    for (const std::string& option : given)
      if (!isForMeasuring(option)) return Status::error(cat(option, " is for training, and --measure trains nothing"));
    return {};
  }
  if (run.plan.empty()) return Status::error("no plan is given; usage: sheaf-run PLAN --data NAME=FILE... --steps K");
  if (run.steps == 0) return Status::error("--steps K is missing: how many steps are to be run?");
  SHEAF_RETURN_IF_ERROR(exec::checkTuning(run, run.device));
  if (run.saveEvery > 0 && run.saveState.empty()) return Status::error("--save-every needs --save-state DIR");
  return {};
}

}  // namespace

Expected<CommandLine> parseCommandLine(const std::vector<std::string>& arguments) {
  CommandLine line;
  std::set<std::string> given;
  std::map<std::string, Setter> setters = settersFor(line.run);
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::string option = arguments[i];
    if (option.empty() || option[0] != '-') {
      if (!line.run.plan.empty())
        return Status::error(cat("one plan at a time: '", line.run.plan, "' and '", option, "'"));
      line.run.plan = option;
      continue;
    }
    if (option == "--help" || option == "-h") {
      line.help = true;
      return line;
    }
    if (option == "--version") {
      line.version = true;
      return line;
    }
    given.insert(option.substr(0, option.find('=')));
    if (option == "--poison") {
      line.run.poison = true;
      continue;
    }
    if (option == "--unproved") {
      line.run.unproved = true;
      continue;
    }
    if (option == "--no-graphs") {
      line.run.graphs = false;
      continue;
    }
    size_t equals = option.find('=');
    bool attached = equals != std::string::npos;
    std::string value = attached ? option.substr(equals + 1) : "";
    if (attached) option.resize(equals);
    auto setter = setters.find(option);
    if (setter == setters.end()) return unknown(option, setters);
    if (!attached) {
      if (++i == arguments.size()) return Status::error(cat(option, " wants a value"));
      value = arguments[i];
    }
    if (Status status = setter->second(value); !status.ok()) {
      bool named = status.message().rfind("--", 0) == 0;
      return named ? status : Status::error(cat(option, ": ", status.message()));
    }
  }
  SHEAF_RETURN_IF_ERROR(checkComplete(line.run, given));
  return line;
}

}  // namespace sheaf
