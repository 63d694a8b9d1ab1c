#include <cstdio>
#include <filesystem>
#include <memory>

#include "runtime/plan/Digests.h"
#include "runtime/plan/PlanFile.h"
#include "runtime/plan/Verify.h"
#include "test/fuzz/ModelMutator.h"
#include "test/fuzz/Targets.h"
#include "tools/sheaf/Command.h"

namespace fs = std::filesystem;

namespace sheaf::fuzz {
namespace {

// With its digests made right again, if it is valid otherwise.
std::string mutatedPlan(const std::string& bytes, Random& random) {
  if (random.oneIn(16)) return mutateBytes(bytes, random);
  std::string file = plan::planFile(mutateWire(std::string_view(bytes).substr(plan::kPlanHeaderBytes), random));
  auto plan = plan::parsePlan(std::as_bytes(std::span(file)));
  if (!plan.ok() || !plan::verifyPlan(**plan).ok()) return file;
  plan::redigest(**plan);
  auto restated = plan::serializePlan(**plan);
  return restated.ok() ? *restated : file;
}

std::string mutatedWeights(const std::string& bytes, Random& random) {
  uint64_t length = 0;
  for (size_t i = 0; i < 8 && i < bytes.size(); ++i)
    length |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  if (random.oneIn(4) || bytes.size() < 8 || length > bytes.size() - 8) return mutateBytes(bytes, random);
  const std::string header = mutateText(std::string_view(bytes).substr(8, length), random);
  std::string file;
  for (int i = 0; i < 8; ++i) file.push_back(static_cast<char>(header.size() >> (8 * i)));
  return file + header + bytes.substr(8 + length);
}

}  // namespace

Target exportTarget(const std::string& corpus) {
  struct Case {
    std::string name;
    Seed model, plan, weights;
    onnx::ModelProto parsed;
  };
  auto cases = std::make_shared<std::vector<Case>>();
  for (const auto& entry : fs::directory_iterator(corpus + "/export")) {
    if (!entry.is_directory()) continue;
    std::vector<Seed> files = readSeeds(entry.path().string());  // model.onnx, plan, weights.safetensors
    cases->push_back({entry.path().string(), files.at(0), files.at(1), files.at(2), {}});
    if (!cases->back().parsed.ParseFromString(files[0].bytes)) std::exit(2);
  }
  std::vector<const onnx::ModelProto*> donors;
  for (const Case& one : *cases) donors.push_back(&one.parsed);
  auto mutator = std::make_shared<ModelMutator>(donors);
  return {"export", 2, [=](Random& random) {
            const Case& seed = (*cases)[random.below(cases->size())];
            const std::string folder = scratch(corpus, "export");
            fs::create_directories(folder);
            auto put = [&](const std::string& name, const std::string& bytes) {
              writeWhole(folder + "/" + name, bytes);
              return folder + "/" + name;
            };
            std::string model = seed.model.bytes;
            const uint64_t which = random.below(8);
            if (which == 0) {
              model = random.oneIn(2) ? mutateWire(model, random) : mutateBytes(model, random);
            } else if (which < 5) {
              onnx::ModelProto changed = seed.parsed;
              mutator->mutate(changed, random);
              model = changed.SerializeAsString();
            }
            const std::string plan =
                put("plan", which == 5 || which == 6 ? mutatedPlan(seed.plan.bytes, random) : seed.plan.bytes);
            std::vector<std::string> texts{plan, "-o"};
            texts.push_back(folder + (random.oneIn(6) ? "/out.safetensors" : "/out.onnx"));
            texts.insert(texts.end(), {"--model", put("model.onnx", model)});
            if (which == 7)
              texts.insert(texts.end(),
                           {"--weights", put("weights.safetensors", mutatedWeights(seed.weights.bytes, random))});
            else if (random.oneIn(2))
              texts.insert(texts.end(), {"--weights", seed.weights.path});
            else
              texts.insert(texts.end(), {"--state", seed.name + "/state"});
            if (random.oneIn(2)) texts.push_back("--keep-training");
            std::freopen("/dev/null", "w", stdout);
            if (tool::exportCommand().run({texts.begin(), texts.end()}) == tool::kMisused) std::abort();
          }};
}

}  // namespace sheaf::fuzz
