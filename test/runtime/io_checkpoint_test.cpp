// Saved states: manifests, coverage, and what happens to damaged ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "runtime/io/Checkpoint.h"
#include "test/runtime/TrainingPlan.h"

namespace sheaf {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

io::Manifest manifestOf(int64_t step) {
  io::Manifest manifest;
  manifest.step = step;
  manifest.samples = step * 8;
  manifest.updates = step - 1;
  manifest.seed = -3;
  manifest.shuffleSeed = 5;
  manifest.length = {.steps = 1000, .schedule = "cosine:steps=1000", .batch = 8, .rows = 24};
  manifest.ranks = 2;
  manifest.zeroStage = 3;
  manifest.model = "m \"quoted\"";
  manifest.optimizer = "adamw";
  manifest.parameters.push_back({"layer/w", io::DataType::F32, {2, 3}, {1, 0}, {"m"}});
  return manifest;
}

TEST(Manifest, ReadsBackTheSame) {
  io::Manifest manifest = manifestOf(7);
  manifest.files.push_back({"rank-00000.safetensors", 10, 0xfedcba9876543210u});
  auto read = io::parseManifest(io::manifestText(manifest));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(io::manifestText(*read), io::manifestText(manifest));
  EXPECT_EQ(read->parameters, manifest.parameters);
  EXPECT_EQ(read->files[0].checksum, 0xfedcba9876543210u);
  EXPECT_EQ(read->shuffleSeed, 5);
  EXPECT_EQ(read->length, manifest.length);
  EXPECT_EQ(read->cpu, std::nullopt);
  manifest.cpu = plan::CpuIdentity{"A CPU", "oneDNN 2.6.3", "Sheaf", "AVX2", "none", "x86-64-v3", false};
  EXPECT_EQ(io::parseManifest(io::manifestText(manifest))->cpu, manifest.cpu);
  // Version 0.1.0 stored no length.
  manifest.length.reset();
  EXPECT_EQ(io::parseManifest(io::manifestText(manifest))->length, std::nullopt);
}

TEST(Manifest, ALengthThatCannotBeIsRefused) {
  auto refused = [](void (*change)(io::TrainingLength&)) {
    io::Manifest manifest = manifestOf(7);
    change(*manifest.length);
    return io::parseManifest(io::manifestText(manifest)).status().message();
  };
  EXPECT_EQ(refused([](io::TrainingLength& length) { length.steps = 7; }), "");
  EXPECT_THAT(refused([](io::TrainingLength& length) { length.steps = 6; }),
              HasSubstr("after 7 steps of a training of 6"));
  EXPECT_THAT(refused([](io::TrainingLength& length) { length.steps = INT64_MAX; }), HasSubstr("after 7 steps"));
  EXPECT_THAT(refused([](io::TrainingLength& length) { length.batch = 0; }), HasSubstr("batches of 0 rows"));
  EXPECT_THAT(refused([](io::TrainingLength& length) { length.steps = -1; }),
              HasSubstr("missing or of the wrong type"));
  EXPECT_THAT(refused([](io::TrainingLength& length) { length.rows = -1; }), HasSubstr("missing or of the wrong type"));
}

TEST(Manifest, DamageIsNoticed) {
  std::string text = io::manifestText(manifestOf(7));
  for (size_t at = 0; at < text.size(); ++at) {
    if (std::isspace(static_cast<unsigned char>(text[at]))) continue;
    std::string damaged = text;
    damaged[at] ^= 1;
    EXPECT_FALSE(io::parseManifest(damaged).ok()) << at << ": " << damaged.substr(at, 20);
  }
}

TEST(Manifest, FileNamesAreNoPaths) {
  for (const char* name : {"../../etc/passwd", "/etc/passwd", "", "."}) {
    io::Manifest manifest = manifestOf(1);
    manifest.files.push_back({name, 1, 1});
    EXPECT_FALSE(io::parseManifest(io::manifestText(manifest)).ok()) << name;
  }
}

// Saves the six elements of `layer/w` and its state `m` in two files, cut at `cut`.
Status save(const std::string& folder, int64_t step, int64_t cut, int64_t second) {
  auto writer = io::CheckpointWriter::create(folder, step);
  if (!writer.ok()) return writer.status();
  io::Manifest manifest = manifestOf(step);
  std::vector<float> values{0, 1, 2, 3, 4, static_cast<float>(step)};
  for (auto [begin, end] : {std::pair<int64_t, int64_t>(0, cut), {second, 6}}) {
    std::string at = std::to_string(begin);
    std::string name = "rank-" + at + ".safetensors";
    auto file = io::SafetensorsWriter::create(writer->path(name),
                                              {{"parameter/" + at + "/layer/w", io::DataType::F32, {end - begin}},
                                               {"m/" + at + "/layer/w", io::DataType::F32, {end - begin}}});
    if (!file.ok()) return file.status();
    for (int i = 0; i < 2; ++i)
      SHEAF_RETURN_IF_ERROR(file->write(std::as_bytes(std::span(values).subspan(begin, end - begin))));
    SHEAF_RETURN_IF_ERROR(file->commit());
    manifest.files.push_back({name, file->size(), file->checksum()});
  }
  return writer->commit(manifest);
}

TEST(Checkpoint, PiecesCoverEveryElement) {
  TemporaryFolder folder;
  ASSERT_TRUE(save(folder.path(), 7, 4, 4).ok());
  EXPECT_EQ(testing::readFile(folder / "latest"), "step-00000007\n");
  auto checkpoint = io::Checkpoint::open(folder / "step-00000007");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_EQ(checkpoint->manifest().step, 7);
  const auto& pieces = checkpoint->pieces(io::kParameterKind, "layer/w");
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[1].begin, 4u);
  float last = 0;
  std::memcpy(&last, pieces[1].data.data() + 4, 4);
  EXPECT_EQ(last, 7);
  EXPECT_EQ(checkpoint->pieces("m", "layer/w").size(), 2u);
}

TEST(Checkpoint, GapsAndOverlapsAreRefused) {
  TemporaryFolder folder;
  ASSERT_TRUE(save(folder.path(), 1, 3, 4).ok());
  EXPECT_THAT(io::Checkpoint::open(folder / "step-00000001").status().message(), HasSubstr("do not fit together"));
  ASSERT_TRUE(save(folder.path(), 2, 4, 3).ok());
  EXPECT_THAT(io::Checkpoint::open(folder / "step-00000002").status().message(), HasSubstr("do not fit together"));
}

TEST(Checkpoint, SavingAgainReplaces) {
  TemporaryFolder folder;
  ASSERT_TRUE(save(folder.path(), 1, 3, 3).ok());
  ASSERT_TRUE(save(folder.path(), 1, 5, 5).ok());
  EXPECT_EQ(io::Checkpoint::open(folder / "step-00000001")->pieces("m", "layer/w")[1].begin, 5u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 2);
}

TEST(Checkpoint, NothingRemainsWithoutCommit) {
  TemporaryFolder folder;
  { auto writer = io::CheckpointWriter::create(folder / "deep/states", 3); }
  EXPECT_TRUE(std::filesystem::is_empty(folder / "deep/states"));
}

TEST(Checkpoint, TheNewestOneIsTaken) {
  TemporaryFolder folder;
  std::vector<std::string> warnings;
  auto newest = [&] {
    warnings.clear();
    return io::Checkpoint::openNewest(folder.path(), [&](const std::string& text) { warnings.push_back(text); });
  };
  EXPECT_THAT(newest().status().message(), HasSubstr("no saved state"));
  for (int64_t step : {9, 10, 200}) ASSERT_TRUE(save(folder.path(), step, 3, 3).ok());
  EXPECT_EQ(newest()->manifest().step, 200);
  testing::writeFile(folder / "latest", "step-00000009\n");
  EXPECT_EQ(newest()->manifest().step, 9);
  testing::writeFile(folder / "latest", "../elsewhere");
  EXPECT_EQ(newest()->manifest().step, 200);
  std::filesystem::create_directory(folder / "step-00000300");
  EXPECT_EQ(newest()->manifest().step, 200);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], AllOf(HasSubstr("step-00000300"), HasSubstr("manifest.json")));
  std::string file = folder / "step-00000200/rank-3.safetensors", content = testing::readFile(file);
  content.back() ^= 1;
  testing::writeFile(file, content);
  // The user decides whether to lose steps.
  EXPECT_THAT(newest().status().message(), AllOf(HasSubstr("step-00000200"), HasSubstr("checksum"),
                                                 HasSubstr("the one before it, " + (folder / "step-00000010"))));
  std::filesystem::resize_file(folder / "step-00000010/rank-0.safetensors", 20);
  EXPECT_THAT(newest().status().message(), HasSubstr("the one before it, " + (folder / "step-00000009")));
  EXPECT_EQ(io::Checkpoint::openNewest(folder / "step-00000009", [](const std::string&) {})->manifest().step, 9);
  std::filesystem::resize_file(folder / "step-00000009/rank-0.safetensors", 20);
  EXPECT_THAT(newest().status().message(), HasSubstr("the newest, step-00000200: "));
  EXPECT_EQ(io::Checkpoint::openNewest(folder / "none", [](const std::string&) {}).ok(), false);
}

}  // namespace
}  // namespace sheaf
