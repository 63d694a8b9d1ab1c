// The content of saved states, compared between runs.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "runtime/io/Checkpoint.h"
#include "runtime/io/StateFolder.h"
#include "test/runtime/TrainingPlan.h"

namespace sheaf::testing {

// Reads a file of a state. A manifest is given without the random number of its run, and so with another checksum.
inline std::string contentOfSaved(const std::string& path) {
  if (!path.ends_with(io::kManifestFile)) return readFile(path);
  Expected<io::Manifest> manifest = io::parseManifest(readFile(path));
  if (!manifest.ok()) {
    ADD_FAILURE() << path << ": " << manifest.status().message();
    return "";
  }
  EXPECT_NE(manifest->run.number, 0u) << path;
  manifest->run.number = 0;
  return io::manifestText(*manifest);
}

}  // namespace sheaf::testing
