// The examples of each command's help. test/e2e/cases/commands.py runs them one after the other in one folder.
#include <map>

#include "tools/sheaf/Command.h"

namespace sheaf::tool {

std::vector<std::string> examplesOf(const std::string& command) {
  static const std::map<std::string, std::vector<std::string>> kExamples{
      {"sheaf check", {"sheaf check model.onnx --batch 64", "sheaf check model.onnx --try --ranks 4 --batch 64"}},
      {"sheaf fit",
       {"sheaf fit model.onnx --ranks 4 --batch 64 --memory 24GiB",
        "sheaf fit model.onnx --ranks 64 --batch 512 --profile h100 --precision bf16"}},
      {"sheaf compile",
       {"sheaf compile model.onnx -o model.plan --ranks 4 --batch 64 --optimizer adamw:lr=1e-3 --eval",
        "sheaf compile model.onnx -o two.plan --ranks 2 --zero 1 --like model.plan"}},
      {"sheaf inspect", {"sheaf inspect model.plan", "sheaf inspect model.plan --format text > model.mlir"}},
      {"sheaf assemble",
       {"sheaf assemble model.mlir -o again.plan", "sheaf assemble model.mlir -o edited.plan --redigest"}},
      {"sheaf verify", {"sheaf verify model.plan", "sheaf verify again.plan --quiet"}},
      {"sheaf same", {"sheaf same model.plan two.plan", "sheaf same model.plan again.plan --format json"}},
      {"sheaf diff", {"sheaf diff model.plan two.plan", "sheaf diff model.plan two.plan --format json"}},
      {"sheaf simulate",
       {"sheaf simulate model.plan --profile h100", "sheaf simulate model.plan --profile a100 --ranks 8"}},
      {"sheaf report",
       {"sheaf report model.plan -o report.html", "sheaf report model.plan -o h100.html --profile h100"}},
      {"sheaf profile", {"sheaf profile -o probe.plan --target cpu", "sheaf profile -o this-machine.json --ranks 2"}},
      {"sheaf init",
       {"sheaf init model.plan -o initial.safetensors",
        "sheaf init model.plan -o small.safetensors --scheme normal:std=0.01 --seed 7"}},
      {"sheaf export",
       {"sheaf export model.plan --weights trained.safetensors --model model.onnx -o trained.onnx",
        "sheaf export model.plan --state state --model model.onnx -o weights.safetensors"}},
      {"sheaf operators", {"sheaf operators", "sheaf operators --format json"}},
      {"sheaf schedules", {"sheaf schedules", "sheaf help schedules"}},
      {"sheaf calls", {"sheaf calls", "sheaf calls --quiet"}},
  };
  const auto found = kExamples.find(command);
  return found == kExamples.end() ? std::vector<std::string>() : found->second;
}

}  // namespace sheaf::tool
