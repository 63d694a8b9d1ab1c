#include "test/fuzz/Targets.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

#include "runtime/base/Hash.h"
#include "runtime/exec/Run.h"
#include "runtime/io/Checkpoint.h"
#include "runtime/io/DataSource.h"
#include "runtime/plan/Digests.h"
#include "runtime/plan/PlanFile.h"
#include "runtime/plan/Verify.h"

namespace fs = std::filesystem;

namespace sheaf::fuzz {

std::vector<Seed> readSeeds(const std::string& folder) {
  std::vector<Seed> seeds;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (!entry.is_regular_file() || entry.path().filename().string().starts_with("scratch")) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    seeds.push_back({entry.path().string(), {std::istreambuf_iterator<char>(file), {}}});
  }
  if (seeds.empty()) {
    std::fprintf(stderr, "%s has no seeds; corpus.py makes them\n", folder.c_str());
    std::exit(2);
  }
  std::sort(seeds.begin(), seeds.end(), [](const Seed& a, const Seed& b) { return a.path < b.path; });
  return seeds;
}

std::string scratch(const std::string& corpus, const std::string& name) {
  return corpus + "/scratch-" + std::to_string(getpid()) + "-" + name;
}

void writeWhole(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

namespace {

template <typename T>
const T& pick(const std::vector<T>& from, Random& random) {
  return from[random.below(from.size())];
}

io::DataArgument argument(const std::string& text) {
  Expected<io::DataArgument> parsed = io::parseDataArgument(text);
  return parsed.ok() ? *parsed : io::DataArgument();
}

// A run of the corpus's plan of the MLP on its data.
exec::RunOptions mlpRun(const std::string& corpus, const std::string& plan) {
  exec::RunOptions options;
  options.plan = plan;
  options.data = {argument("x=" + corpus + "/run/x.npy"), argument("labels=" + corpus + "/run/labels.npy")};
  options.steps = 2;
  options.threadsPerRank = 1;
  return options;
}

void runQuietly(const exec::RunOptions& options) {
  exec::RunControl control;
  (void)exec::run(options, control);
}

void put(std::string& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

// Machine code can do anything, so a plan whose code was changed is loaded and verified but not run.
bool sameCode(const plan::Plan& a, const plan::Plan& b) {
  auto text = [](const plan::Plan& plan) {
    std::string all;
    for (const auto& image : plan.images()) all += image.SerializeAsString() + '\n';
    for (const auto& kernel : plan.kernels()) all += kernel.SerializeAsString() + '\n';
    return all;
  };
  return text(a) == text(b);
}

}  // namespace

Target planTarget(const std::string& corpus) {
  auto seeds = std::make_shared<std::vector<Seed>>(readSeeds(corpus + "/plan"));
  auto originals = std::make_shared<std::vector<std::unique_ptr<plan::Plan>>>();
  for (const Seed& seed : *seeds) {
    auto plan = plan::parsePlan(std::as_bytes(std::span(seed.bytes)));
    if (!plan.ok()) {
      std::fprintf(stderr, "%s: %s\n", seed.path.c_str(), plan.status().message().c_str());
      std::exit(2);
    }
    originals->push_back(std::move(*plan));
  }
  return {"plan", 8, [=](Random& random) {
            size_t which = random.below(seeds->size());
            const Seed& seed = (*seeds)[which];
            std::string file =
                random.oneIn(16)
                    ? mutateBytes(seed.bytes, random)
                    : plan::planFile(mutateWire(std::string_view(seed.bytes).substr(plan::kPlanHeaderBytes), random));
            auto plan = plan::parsePlan(std::as_bytes(std::span(file)));
            if (!plan.ok() || !plan::verifyPlan(**plan).ok() || !sameCode(**plan, *(*originals)[which])) return;
            // Digests refuse nearly every mutant: mostly they are restated, so that the run is tried as well.
            if (!random.oneIn(8)) {
              plan::redigest(**plan);
              if (auto restated = plan::serializePlan(**plan); restated.ok()) file = *restated;
            }
            std::string path = scratch(corpus + "/plan", "plan");
            writeWhole(path, file);
            runQuietly(mlpRun(corpus, path));
          }};
}

Target dataTarget(const std::string& corpus) {
  auto seeds = std::make_shared<std::vector<Seed>>(readSeeds(corpus + "/data"));
  auto plans = std::make_shared<std::vector<std::unique_ptr<plan::Plan>>>();
  for (const Seed& seed : readSeeds(corpus + "/data-plan"))
    if (auto plan = plan::parsePlan(std::as_bytes(std::span(seed.bytes))); plan.ok())
      plans->push_back(std::move(*plan));
  return {"data", 4, [=](Random& random) {
            const Seed& seed = pick(*seeds, random);
            std::string ending = fs::path(seed.path).extension().string();
            std::string path = scratch(corpus + "/data", "data" + ending);
            // The head decides most: half of the mutations stay in it.
            size_t head = random.oneIn(2) ? std::min<size_t>(seed.bytes.size(), 128) : seed.bytes.size();
            writeWhole(path, mutateBytes(seed.bytes.substr(0, head), random) + seed.bytes.substr(head));
            for (const auto& plan : *plans) {
              // Language models have two inputs of tokens, the MLP rows and labels.
              bool tokens = plan->inputs(0).type() == plan->inputs(1).type();
              std::vector<std::string> texts{tokens ? "input_ids,labels=" + path : "x=" + path};
              if (tokens && ending == ".npy") texts = {"input_ids=" + path, "labels=" + path};
              if (!tokens) texts.push_back("labels=" + corpus + "/run/labels.npy");
              std::vector<io::DataArgument> arguments;
              for (const std::string& text : texts) arguments.push_back(argument(text));
              auto data =
                  io::DataSource::open(*plan, arguments, random.oneIn(2) ? std::optional<int64_t>(3) : std::nullopt);
              if (!data.ok()) continue;
              std::vector<std::byte> row(1 << 16);
              for (uint64_t sample : {uint64_t{0}, data->rows() - 1, data->rows() * 7 + 3})
                for (int input = 0; input < plan->inputs_size(); ++input) {
                  uint64_t bytes = plan->inputs(input).type() == plan::F32 ? 4 : 8;
                  for (int64_t size : plan->inputs(input).shape()) bytes *= static_cast<uint64_t>(size);
                  row.resize(bytes);
                  for (int64_t rank = 0; rank < plan->ranks(); ++rank)
                    (void)data->read(rank, static_cast<uint32_t>(input), sample, row);
                }
            }
          }};
}

Target weightsTarget(const std::string& corpus) {
  auto seeds = std::make_shared<std::vector<Seed>>(readSeeds(corpus + "/weights"));
  return {"weights", 4, [=](Random& random) {
            const Seed& seed = pick(*seeds, random);
            uint64_t length = 0;
            for (size_t i = 0; i < 8 && i < seed.bytes.size(); ++i)
              length |= uint64_t{static_cast<unsigned char>(seed.bytes[i])} << (8 * i);
            std::string file;
            if (random.oneIn(4) || length > seed.bytes.size() - 8) {
              file = mutateBytes(seed.bytes, random);
            } else {
              std::string header = mutateText(std::string_view(seed.bytes).substr(8, length), random);
              put(file, header.size(), 8);
              file += header + seed.bytes.substr(8 + length);
            }
            auto parsed = io::Safetensors::parse(std::as_bytes(std::span(file)));
            if (!parsed.ok()) return;
            unsigned sum = 0;
            for (const auto& [name, tensor] : parsed->tensors())
              for (std::byte byte : tensor.data) sum += static_cast<unsigned>(byte);
            [[maybe_unused]] volatile unsigned kept = sum;
            std::string path = scratch(corpus + "/weights", "w.safetensors");
            writeWhole(path, file);
            exec::RunOptions options = mlpRun(corpus, corpus + "/run/mlp.plan");
            options.weights = path;
            runQuietly(options);
          }};
}

Target stateTarget(const std::string& corpus) {
  std::string original = corpus + "/run/state", step;
  for (const auto& entry : fs::directory_iterator(original))
    if (entry.is_directory()) step = entry.path().filename().string();
  auto seeds = std::make_shared<std::vector<Seed>>(readSeeds(original + "/" + step));
  return {"state", 2, [=](Random& random) {
            std::string folder = scratch(corpus + "/run", "state");
            std::error_code error;
            fs::remove_all(folder, error);
            fs::copy(original, folder, fs::copy_options::recursive, error);
            const Seed& seed = pick(*seeds, random);
            std::string name = fs::path(seed.path).filename().string();
            bool manifest = name == "manifest.json";
            std::string bytes = manifest ? mutateText(seed.bytes, random) : mutateBytes(seed.bytes, random);
            writeWhole(folder + "/" + step + "/" + name, bytes);
            if (!manifest && random.oneIn(2)) {  // the manifest agrees with the mutated file
              for (const Seed& other : *seeds) {
                if (fs::path(other.path).filename() != "manifest.json") continue;
                Expected<io::Manifest> parsed = io::parseManifest(other.bytes);
                if (!parsed.ok()) continue;
                for (auto& file : parsed->files)
                  if (file.name == name) {
                    file.size = bytes.size();
                    file.checksum = xxh64(bytes);
                  }
                writeWhole(folder + "/" + step + "/manifest.json", io::manifestText(*parsed));
              }
            }
            exec::RunOptions options = mlpRun(corpus, corpus + "/run/mlp.plan");
            options.resume = folder;
            runQuietly(options);
          }};
}

}  // namespace sheaf::fuzz
