#include "tools/sheaf-run/Options.h"

#include "runtime/exec/RunInputs.h"
#include "runtime/io/SafetensorsShards.h"
#include "runtime/plan/Schedules.h"
#include "runtime/plan/Words.h"
#include "tools/options/Rows.h"

namespace sheaf {
namespace {

constexpr int64_t kMost = int64_t{1} << 48;

options::Words<plan::Training::ReduceOrder> reduceOrders() {
  options::Words<plan::Training::ReduceOrder> words;
  for (const std::string& word : plan::words<plan::Training::ReduceOrder>())
    words.emplace_back(word, *plan::valueOf<plan::Training::ReduceOrder>(word));
  return words;
}

Expected<uint64_t> parseStaging(const std::string& text) {
  constexpr uint64_t kLeast = 64 << 10;
  uint64_t bytes = 0;
  if (text == "auto") return UINT64_MAX;
  const std::string problem = bytesProblem(text, bytes);
  if (problem.empty() && bytes >= kLeast) return bytes;
  return Status::error(cat("expected auto or a size in bytes of at least 64KiB, such as 2GiB",
                           problem.empty() ? "" : cat("; ", problem)));
}

// The options of `sheaf compile` that this program does not have. The case mistakes/options-of-compile compares them
// with its help.
std::map<std::string, std::string> optionsOfCompile() {
  std::map<std::string, std::string> all;
  for (const char* name : {"--batch",
                           "--batch-norm",
                           "--bind",
                           "--bucket-size",
                           "--clip-norm",
                           "--const",
                           "--cpu",
                           "--eval-only",
                           "--file-generations",
                           "--file-space",
                           "--freeze",
                           "--gemm-epilogues",
                           "--group",
                           "--host-memory",
                           "--keep",
                           "--leaves",
                           "--loss",
                           "--loss-scale",
                           "--max-threads-per-rank",
                           "--memory-limit",
                           "--micro-batches",
                           "--no-decay",
                           "--offload",
                           "--on-nan",
                           "--optimizer",
                           "--precision",
                           "--prefetch",
                           "--profile",
                           "--ranks-per-node",
                           "--recompute",
                           "--reduce",
                           "--reduce-precision",
                           "--rows",
                           "--secondary-shards",
                           "--seed",
                           "--target",
                           "--train",
                           "--update-on",
                           "--zero"})
    all[name] = "the plan has it from `sheaf compile`; compile again to change it";
  for (const char* name : {"-o", "--compile-to", "--deepspeed", "--format", "--ignore", "--like", "--no-graph",
                           "--no-weight-hashes", "--verbose"})
    all[name] = "it is one of `sheaf compile`, which makes plans";
  all["--seed"] += "; --shuffle SEED is the seed of the order of rows";
  return all;
}

options::Table makeTable() {
  using O = exec::RunOptions;
  using Row = options::Rows<O>;
  options::Table table{
      "sheaf-run",
      "Runs a training plan made by `sheaf compile`.",
      {"sheaf-run PLAN... --data NAME=FILE... --steps K [options]",
       "sheaf-run PLAN... --eval --eval-data NAME=FILE... [options]", "sheaf-run PROBE --measure P.json [options]"},
      Row::positional<&O::plans>("PLAN"),
      {},
      "Of several plans it takes the one for as many ranks as there are processes, after it has checked that all "
      "compute "
      "the same bits: see `sheaf same`.\n\n"
      "Processes that torchrun, mpirun, srun or Kubernetes starts with the same command share the ranks of the plan. "
      "SHEAF_RENDEZVOUS=host:port says where they meet, SHEAF_TIMEOUT=seconds how long they wait for each "
      "other, SHEAF_SECRET what they must know to join. See docs/cluster.md.\n\nExit status: 0 done, 1 refused or "
      "failed, 2 wrong usage, 128 + N ended by the signal N before the last step."};
  table.versioned = true;
  table.examples = {
      "sheaf-run model.plan --data x=x.npy --data labels=labels.npy --steps 100 --save trained.safetensors "
      "--save-state state",
      "sheaf-run model.plan --eval --weights trained.safetensors --eval-data x=x.npy --eval-data labels=labels.npy"};
  table.foreign = optionsOfCompile();
  table.sections = {
      {"Data",
       {Row::parsed<&O::data>(
            "--data", "NAME=FILE", "NAME=FILE.npy, NAME=TOKENS, NAME,LABELS=TOKENS or NAME,NAME,...=PIPE",
            "Rows of an input: a .npy file, or raw tokens (u8, u16, u32, i32, i64, named by the file's ending or by "
            "FILE:u16; .bin is u16 or llm.c's format), of which a row is as long as the input. NAME,LABELS=TOKENS: the "
            "labels are the tokens shifted by one. A pattern such as 'train-*.bin' reads all files that match as one, "
            "in the order of their names. Step s reads rows s*B to s*B+B-1 of the global batch B, and starts "
            "again at the end. NAME,NAME,...=PIPE: rows of all these inputs through a pipe, as .npy arrays in turns.",
            io::parseDataArgument),
        Row::integer<&O::steps>("--steps", "K", 1, kMost,
                                "Length of the training in steps, counted from its start: a run that resumes a state "
                                "goes on to step K.")
            .defaultsTo("none: it or --epochs is needed to train"),
        Row::integer<&O::epochs>(
            "--epochs", "E", 1, int64_t{1} << 31,
            "Instead of --steps: run until the data has been read E times, counted from the start "
            "of the training. Batches go on over the end of a pass; at the end of the last one, rows "
            "that do not fill a batch are left out.")
            .defaultsTo("--steps"),
        Row::integer<&O::shuffleSeed>("--shuffle", "SEED", INT64_MIN, INT64_MAX,
                                      "Read the rows in another order in every pass over the data.")}},
      {"Evaluation",
       {Row::flag<&O::evaluate>(
            "--eval",
            "Evaluate once with the weights of --weights or --resume (default: the plan's initial weights); do "
            "not train. The plan needs an evaluation: `sheaf compile --eval` or `--eval-only`."),
        Row::integer<&O::evaluateEvery>("--eval-every", "K", 1, kMost,
                                        "Evaluate after every K steps and after the last one.")
            .defaultsTo("no evaluation"),
        Row::parsed<&O::evaluationData>("--eval-data", "NAME=FILE", "NAME=FILE.npy, NAME=TOKENS or NAME,LABELS=TOKENS",
                                        "Rows of an input of the evaluation, which reads all of them once, in order.",
                                        io::parseDataArgument),
        Row::text<&O::outputs>("--outputs", "DIR",
                               "Write each output of the graph except the loss, for all rows, as DIR/NAME.npy; with "
                               "--eval-every as DIR/step-NNNNNNNN/NAME.npy.")}},
      {"Weights and state",
       {Row::text<&O::weights>(
            "--weights", "W.safetensors",
            "Initial weights by name, instead of those that the plan names. Also an index of several "
            "files (W.safetensors.index.json), or a folder with model.safetensors.index.json or "
            "model.safetensors."),
        Row::flag<&O::weightsPartial>(
            "--weights-partial",
            "Let parameters that the file of --weights lacks keep the plan's initial values; without this it is an "
            "error."),
        Row::text<&O::weightsFolder>("--weights-dir", "DIR", "Where the weight files that the plan names are now."),
        Row::text<&O::save>("--save", "W.safetensors",
                            "Write the whole weights after the last step. W.safetensors.index.json: as files "
                            "W-00001-of-0000N.safetensors and this index, as Hugging Face's libraries read them; every "
                            "process writes its ranks' part, and all must see the folder.")
            .writes({"safetensors", "safetensors.index.json"}),
        Row::bytes<&O::shardBytes>("--shard-size", "Maximum size of a file of --save W.safetensors.index.json.")
            .defaultsTo("5GB"),
        Row::text<&O::saveState>(
            "--save-state", "DIR",
            "Write weights, optimizer state and position into DIR/step-NNNNNNNN after the last step."),
        Row::integer<&O::saveEvery>("--save-every", "K", 1, kMost, "With --save-state: save every K steps as well.")
            .defaultsTo("the last step only"),
        Row::parsed<&O::saveStaging>(
            "--save-staging", "auto|SIZE", "auto or a size in bytes of at least 64KiB, such as 2GiB",
            "Write the states of --save-every while the run goes on. The run waits only until each rank has copied its "
            "state into a host buffer of this size. If the buffer is smaller than the state, the copy waits for the "
            "disk. auto: the size of the state, which `sheaf inspect` prints. Needs --save-every.",
            parseStaging)
            .defaultsTo("none: the run waits until a state is on the disk"),
        Row::integer<&O::keepSaves>("--keep-saves", "K", 1, kMost,
                                    "Keep the newest K states in the folder of --save-state: older ones are removed "
                                    "when a newer one is whole and on the disk. One run at a time may use the folder.")
            .defaultsTo("all states"),
        Row::text<&O::resume>("--resume", "DIR",
                              "Continue from the newest state in DIR, or from DIR itself if it is a state. The plan "
                              "may have another number of ranks and another stage. --steps and --epochs are the length "
                              "of the whole training, and a schedule keeps its length. If DIR is the --offload-dir, "
                              "continue from what a run of the same plan left there, even if it was killed.")}},
      {"Training",
       {Row::real<&O::learningRate>("--lr", "RATE", 0, false,
                                    "Learning rate, also of the parameter groups that have none of their own.")
            .defaultsTo("the plan's"),
        Row::parsed<&O::schedule>("--lr-schedule", "SCHEDULE", plan::scheduleSyntax(), plan::scheduleHelp(),
                                  plan::parseSchedule)
            .defaultsTo("the plan's")}},
      {"Ranks",
       {Row::integer<&O::ranks>(
            "--ranks", "N", 1, kMost,
            "Run the plan that was compiled for N ranks; the processes divide them among themselves.")
            .defaultsTo("with several plans as many as processes, else the plan's")}},
      {"Device",
       {Row::word<&O::device>("--device", {"cpu", "cuda"}, "Device to run on.").defaultsTo("the plan's first target"),
        Row::choice<&O::reduceOrder>("--reduce-order", reduceOrders(),
                                     "Order in which GPUs add the values of ranks: one fixed tree, or NCCL's own ring.")
            .defaultsTo("the plan's"),
        Row::word<&O::transport>("--transport", {"sockets", "mpi"},
                                 "What carries data between processes on CPUs: TCP sockets, or the MPI whose mpirun "
                                 "has started the processes. Does not change results."),
        Row::flag<&O::allowMixedHosts>(
            "--allow-mixed-hosts",
            "Let processes on CPUs run together although their instruction sets or versions of oneDNN differ. Results "
            "may then differ in their last digits. Without this option it is an error."),
        Row::text<&O::offloadFolders>(
            "--offload-dir", "DIR",
            "Folder on a local disk for the files of a plan that was compiled with --offload KIND=file. On CPU ranks, "
            "if all state is there, --resume DIR continues from it after the run or a crash; otherwise the files are "
            "removed when the run ends. Several folders share the data."),
        Row::flag<&O::graphs>("--no-graphs", "Launch each instruction by itself, not steps as CUDA graphs."),
        Row::text<&O::tuned>(
            "--tuned", "FILE",
            "On GPUs: choose the algorithms of matrix products by this table. If there is no such file, "
            "the products are measured first and it is written.")
            .writes(std::vector<std::string>()),
        Row::integer<&O::threadsPerRank>("--threads-per-rank", "T", 1, kMost,
                                         "Compute threads of each rank; on GPUs those of updates on the host.")
            .defaultsTo("the machine's cores, shared out")}},
      {"Inspection",
       {Row::text<&O::log>(
            "--log", "RUN.jsonl",
            "Write one JSON object a step: step, loss, grad_norm, lr, seconds. Other objects have \"event\".")
            .writes({"jsonl", "json"}),
        Row::text<&O::logFolder>(
            "--log-dir", "DIR",
            "Write loss, norm, learning rate, tokens or samples a second, memory and evaluations as an event file for "
            "TensorBoard into DIR."),
        Row::text<&O::metrics>("--metrics-file", "FILE.prom",
                               "Keep a file of metrics up to date, in the format of the textfile collector of "
                               "Prometheus' node exporter.")
            .writes({"prom"}),
        Row::text<&O::trace>("--trace", "T.json",
                             "Write when each instruction of the last 16 steps ran, for chrome://tracing or Perfetto.")
            .writes({"json"}),
        Row::text<&O::gradients>("--dump-gradients", "G.safetensors", "Write the first step's gradients.")
            .writes({"safetensors"}),
        Row::text<&O::measure>("--measure", "P.json",
                               "With a probe of `sheaf profile --target`: measure the device for `sheaf simulate`, and "
                               "with --offload-dir DIR the disk of DIR.")
            .writes({"json"}),
        Row::flag<&O::quiet>("--quiet",
                             "Print warnings and errors alone: no progress, and no line about written files."),
        Row::flag<&O::unproved>("--unproved",
                                "Also run a plan without digests, which cannot be checked against what was compiled."),
        Row::flag<&O::poison>("--poison", "Fill arenas with a pattern first, and log the highest byte touched.")}}};
  table.modes = {
      {"--eval",
       {"--eval-data",   "--outputs",      "--ranks",     "--weights",      "--weights-partial", "--weights-dir",
        "--resume",      "--log",          "--log-dir",   "--metrics-file", "--device",          "--allow-mixed-hosts",
        "--offload-dir", "--reduce-order", "--transport", "--no-graphs",    "--tuned",           "--threads-per-rank",
        "--unproved",    "--poison",       "--quiet"}},
      {"--measure",
       {"--device", "--offload-dir", "--reduce-order", "--no-graphs", "--tuned", "--threads-per-rank", "--unproved",
        "--quiet"}}};
  return table;
}

}  // namespace

std::string commandToResume(const std::vector<std::string>& command, const std::string& folder) {
  std::string text, paths;  // up to "--", and from there on
  for (size_t i = 0; i < command.size(); ++i) {
    if (!paths.empty() || command[i] == "--")
      paths += " " + shellWord(command[i]);
    else if (i > 0 && command[i] == "--resume")
      ++i;  // and its value
    else if (i == 0 || !command[i].starts_with("--resume="))
      text += shellWord(command[i]) + " ";
  }
  return text + "--resume " + shellWord(folder) + paths;
}

const options::Table& runTable() {
  static const options::Table table = makeTable();
  return table;
}

Expected<CommandLine> parseCommandLine(const std::vector<std::string>& arguments) {
  CommandLine line;
  Expected<options::Given> given = runTable().parse(arguments, &line.run);
  if (!given.ok()) return given.status();
  line.given = *given;
  if (given->help || given->version) return line;
  line.run.plan = line.run.plans.front();
  if (given->has("--measure") && line.run.plans.size() > 1) return Status::error("--measure takes one PROBE");
  if (given->has("--measure")) return line;
  if ((line.run.evaluate || line.run.evaluateEvery > 0) && line.run.evaluationData.empty())
    return Status::error("--eval and --eval-every need --eval-data NAME=FILE for every input of the plan");
  if (!line.run.evaluate && line.run.evaluateEvery == 0 && (given->has("--eval-data") || given->has("--outputs")))
    return Status::error("--eval-data and --outputs need --eval (evaluate once) or --eval-every K (while training)");
  if (line.run.weightsPartial && line.run.weights.empty())
    return Status::error("--weights-partial needs --weights W.safetensors: which file may lack parameters?");
  if (line.run.evaluate) return line;
  if (line.run.steps == 0 && line.run.epochs == 0)
    return Status::error("--steps K or --epochs E is missing: how many steps are to be run?");
  if (line.run.steps > 0 && line.run.epochs > 0)
    return Status::error("--steps and --epochs exclude each other: which one says how long the run is?");
  SHEAF_RETURN_IF_ERROR(exec::checkDeviceOptions(line.run, line.run.device));
  if (line.run.saveEvery > 0 && line.run.saveState.empty())
    return Status::error("--save-every needs --save-state DIR: where are the states to be written?");
  if (line.run.saveStaging > 0 && line.run.saveEvery == 0)
    return Status::error("--save-staging needs --save-every K: the run ends with the last save, and waits for it");
  if (given->has("--shard-size") && !io::isShardIndex(line.run.save))
    return Status::error("--shard-size is for --save W.safetensors.index.json, which writes several files");
  if (line.run.keepSaves > 0 && line.run.saveState.empty())
    return Status::error("--keep-saves needs --save-state DIR: whose states are to be kept?");
  return line;
}

}  // namespace sheaf
