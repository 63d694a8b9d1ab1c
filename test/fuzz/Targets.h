// What is fuzzed. The corpus is a folder made by corpus.py; every target reads its seeds from a folder of its own
// there.
#pragma once

#include <string>
#include <vector>

#include "test/fuzz/Runner.h"

namespace sheaf::fuzz {

// ONNX models and ONNX Runtime's training artifacts: imported or surveyed, as a training step or an evaluation. What is
// accepted goes through the phases up to `zero`, and now and then through all of `sheaf compile`.
Target onnxTarget(const std::string& corpus);
// Models, plans and weights: given to `sheaf export`.
Target exportTarget(const std::string& corpus);
// Plans with the payload's size and hash made right again: parsed, verified, and what is accepted runs two steps.
Target planTarget(const std::string& corpus);
// Texts of plans: parsed, and what is accepted is printed, parsed again and verified.
Target textTarget(const std::string& corpus);
// .npy and raw token files: opened as a plan's data, every row read.
Target dataTarget(const std::string& corpus);
// safetensors: parsed, now and then taken as a run's weights.
Target weightsTarget(const std::string& corpus);
// Saved states, with checksums left wrong or made right: resumed from.
Target stateTarget(const std::string& corpus);
// Machine profiles and plans: what is accepted of both is simulated.
Target simulateTarget(const std::string& corpus);

// The files of a corpus folder, in the order of their names. An empty folder ends the process with a message.
struct Seed {
  std::string path, bytes;
};
std::vector<Seed> readSeeds(const std::string& folder);

// A path in the corpus that no other process uses; overwritten by each input.
std::string scratch(const std::string& corpus, const std::string& name);
void writeWhole(const std::string& path, const std::string& bytes);

}  // namespace sheaf::fuzz
