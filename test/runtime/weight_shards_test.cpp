// Weights in several safetensors files: their layout, their index, and who writes which bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "runtime/base/Text.h"
#include "runtime/exec/WeightShards.h"
#include "runtime/exec/Weights.h"
#include "runtime/io/SafetensorsShards.h"
#include "test/runtime/FileSystem.h"
#include "test/runtime/TrainingPlan.h"

namespace sheaf {
namespace {

using io::ShardWriter;
using ::testing::HasSubstr;
using testing::readFile;
using testing::TemporaryFolder;
using testing::writeFile;

const std::vector<io::SafetensorsWriter::Entry> kEntries{{"b", io::DataType::F32, {2, 2}},
                                                         {"a", io::DataType::BF16, {3}},
                                                         {"large", io::DataType::F32, {10}},
                                                         {"none", io::DataType::F32, {0}},
                                                         {"c", io::DataType::F32, {4}}};

std::vector<std::byte> valuesOf(size_t tensor) {
  std::vector<std::byte> values(static_cast<size_t>(*plan::elementCount(kEntries[tensor].shape)) *
                                io::bytesOf(kEntries[tensor].type));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::byte>(10 * tensor + i + 1);
  return values;
}

std::set<std::string> namesIn(const TemporaryFolder& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) names.insert(entry.path().filename());
  return names;
}

// One object makes the files, and the two halves of every tensor are written by two.
Status save(const std::string& index, uint64_t shardBytes, bool commit = true) {
  auto maker = ShardWriter::make(index, kEntries, shardBytes);
  if (!maker.ok()) return maker.status();
  auto other = ShardWriter::join(index, kEntries, shardBytes, maker->random());
  if (!other.ok()) return other.status();
  for (size_t t = 0; t < kEntries.size(); ++t) {
    const std::vector<std::byte> values = valuesOf(t);
    const size_t half = values.size() / 2;
    SHEAF_RETURN_IF_ERROR(maker->write(t, 0, std::span(values).first(half)));
    SHEAF_RETURN_IF_ERROR(other->write(t, half, std::span(values).subspan(half)));
  }
  SHEAF_RETURN_IF_ERROR(other->sync());
  return commit ? maker->commit() : Status();
}

TEST(WeightShards, LayoutAndIndex) {
  TemporaryFolder folder;
  Status status = save(folder / "model.safetensors.index.json", 24);
  ASSERT_TRUE(status.ok()) << status.message();
  // 16 + 6 bytes; 40, more than a file's; 0 + 16.
  EXPECT_THAT(namesIn(folder),
              ::testing::ElementsAre("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                     "model-00003-of-00003.safetensors", "model.safetensors.index.json"));
  // As Hugging Face's libraries write it: json.dumps(index, indent=2, sort_keys=True).
  EXPECT_EQ(readFile(folder / "model.safetensors.index.json"), R"({
  "metadata": {
    "saved_by": "sheaf",
    "total_size": 78
  },
  "weight_map": {
    "a": "model-00001-of-00003.safetensors",
    "b": "model-00001-of-00003.safetensors",
    "c": "model-00003-of-00003.safetensors",
    "large": "model-00002-of-00003.safetensors",
    "none": "model-00003-of-00003.safetensors"
  }
}
)");
  for (const std::string& path : {folder.path(), folder / "model.safetensors.index.json"}) {
    auto weights = io::Safetensors::openWeights(path);
    ASSERT_TRUE(weights.ok()) << weights.status().message();
    EXPECT_EQ(weights->tensors().size(), kEntries.size());
    EXPECT_EQ(weights->files().size(), 3u);
    for (size_t t = 0; t < kEntries.size(); ++t) {
      const io::Tensor* tensor = weights->find(kEntries[t].name);
      ASSERT_NE(tensor, nullptr);
      EXPECT_EQ(tensor->shape, kEntries[t].shape);
      EXPECT_TRUE(std::ranges::equal(tensor->data, valuesOf(t))) << kEntries[t].name;
    }
  }
}

TEST(WeightShards, NothingRemainsAndNothingIsTouchedWithoutCommit) {
  TemporaryFolder folder;
  const std::string index = folder / "w.safetensors.index.json";
  ASSERT_TRUE(save(index, 24).ok());
  const std::set<std::string> names = namesIn(folder);
  std::map<std::string, std::string> before;
  for (const std::string& name : names) before[name] = readFile(folder / name);
  ASSERT_TRUE(save(index, 24, false).ok());
  EXPECT_EQ(namesIn(folder), names);
  for (const auto& [name, content] : before) EXPECT_EQ(readFile(folder / name), content) << name;
}

// What an earlier save of another number of files has left goes with its index, and nothing else does.
TEST(WeightShards, FilesOfAnEarlierSaveAreRemoved) {
  TemporaryFolder folder;
  const std::string index = folder / "w.safetensors.index.json", replaced = index + ".replaced";
  const std::set<std::string> three{"w-00001-of-00003.safetensors", "w-00002-of-00003.safetensors",
                                    "w-00003-of-00003.safetensors", "w.safetensors.index.json"};
  const std::set<std::string> one{"w-00001-of-00001.safetensors", "w.safetensors.index.json"};
  ASSERT_TRUE(save(index, 24).ok());
  EXPECT_EQ(namesIn(folder), three);
  ASSERT_TRUE(save(index, 1000).ok());
  EXPECT_EQ(namesIn(folder), one);
  ASSERT_TRUE(save(index, 24).ok());
  EXPECT_EQ(namesIn(folder), three);
  // After a kill between the names of the files and the index it is known what was there before.
  std::filesystem::rename(index, replaced);
  ASSERT_TRUE(save(index, 1000).ok());
  EXPECT_EQ(namesIn(folder), one);
  // After a kill when the new index was written, files that both indexes name stay.
  std::filesystem::copy(index, replaced);
  ASSERT_TRUE(save(index, 24, false).ok());
  ASSERT_TRUE(save(index, 1000).ok());
  EXPECT_EQ(namesIn(folder), one);
  EXPECT_TRUE(io::Safetensors::openWeights(index).ok());
  // An index that others wrote is replaced, and its files are theirs. So are files that ours does not name, or that are
  // called otherwise.
  for (
      const char* text :
      {R"({"metadata": {"total_size": 1}, "weight_map": {"a": "w-00001-of-00002.safetensors"}})", "{", "[1]",
       R"({"metadata": {"saved_by": "sheaf"}, "weight_map": {"a": "other.safetensors", "b": "../w-00001-of-00002.safetensors",
           "c": "v-00001-of-00002.safetensors", "d": "w-1-of-2.safetensors", "e": 1}})"}) {
    std::set<std::string> others{"w-00001-of-00002.safetensors", "other.safetensors", "v-00001-of-00002.safetensors",
                                 "w-1-of-2.safetensors"};
    for (const std::string& name : others) writeFile(folder / name, "");
    writeFile(index, text);
    ASSERT_TRUE(save(index, 1000).ok());
    others.insert(one.begin(), one.end());
    EXPECT_EQ(namesIn(folder), others) << text;
    EXPECT_TRUE(io::Safetensors::openWeights(index).ok());
  }
}

TEST(WeightShards, WritesAreBounded) {
  TemporaryFolder folder;
  auto writer = ShardWriter::make(folder / "w.safetensors.index.json", kEntries, 24);
  ASSERT_TRUE(writer.ok());
  const std::vector<std::byte> bytes(8);
  EXPECT_TRUE(writer->write(0, 8, bytes).ok());
  EXPECT_FALSE(writer->write(0, 9, bytes).ok());
  EXPECT_FALSE(writer->write(0, UINT64_MAX, bytes).ok());
  auto nowhere = ShardWriter::join(folder / "none/w.safetensors.index.json", kEntries, 24, "abc123");
  EXPECT_THAT(nowhere->write(0, 0, bytes).message(), HasSubstr("all processes share"));
  EXPECT_THAT(ShardWriter::make(folder / "none/w.safetensors.index.json", kEntries, 24).status().message(),
              HasSubstr("none/w-00001-of-00003.safetensors"));
  for (const char* name : {"", "abc12", "../abc", "abc1234"})
    EXPECT_FALSE(ShardWriter::join(folder / "w.safetensors.index.json", kEntries, 24, name).ok()) << name;
}

// A save whose values all are `value`, up to its commit.
Expected<ShardWriter> saveUniform(const std::string& index, uint64_t shardBytes, std::byte value) {
  auto writer = ShardWriter::make(index, kEntries, shardBytes);
  if (!writer.ok()) return writer;
  for (size_t t = 0; t < kEntries.size(); ++t) {
    const std::vector<std::byte> values(valuesOf(t).size(), value);
    SHEAF_RETURN_IF_ERROR(writer->write(t, 0, values));
  }
  SHEAF_RETURN_IF_ERROR(writer->sync());
  return writer;
}

// The value that all weights of an index have; none if they are of several saves.
std::optional<std::byte> uniformIn(const std::string& index) {
  auto weights = io::Safetensors::openWeights(index);
  EXPECT_TRUE(weights.ok()) << weights.status().message();
  std::set<std::byte> values;
  for (const auto& entry : kEntries)
    for (const std::byte value : weights->find(entry.name)->data) values.insert(value);
  return values.size() == 1 ? std::optional(*values.begin()) : std::nullopt;
}

TEST(WeightShards, SavesOfTwoRunsToOneIndexDoNotMix) {
  testing::InMemory memory;
  TemporaryFolder folder;
  const std::string index = folder / "w.safetensors.index.json";
  // Both have made and written their files before either commits; the files are as many, or not.
  for (const uint64_t bytes : {uint64_t{24}, uint64_t{1000}}) {
    auto first = saveUniform(index, 24, std::byte{1}), second = saveUniform(index, bytes, std::byte{2});
    ASSERT_TRUE(first.ok() && second.ok());
    ASSERT_TRUE(first->commit().ok());
    EXPECT_EQ(uniformIn(index), std::byte{1});
    ASSERT_TRUE(second->commit().ok());
    EXPECT_EQ(uniformIn(index), std::byte{2});
    EXPECT_EQ(namesIn(folder).size(), bytes == 24 ? 4u : 2u);
  }
  // At the same time: four, so that two of them meet on any machine.
  for (int round = 0; round < 30; ++round) {
    std::vector<ShardWriter> writers;
    for (const std::byte value : {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}}) {
      auto writer = saveUniform(index, round % 2 && value == std::byte{2} ? 1000 : 24, value);
      ASSERT_TRUE(writer.ok());
      writers.push_back(std::move(*writer));
    }
    std::vector<Status> ends(writers.size());
    std::barrier<> begin(std::ptrdiff_t(writers.size()));
    std::vector<std::thread> threads;
    for (size_t i = 0; i < writers.size(); ++i)
      threads.emplace_back([&, i] {
        begin.arrive_and_wait();
        ends[i] = writers[i].commit();
      });
    for (std::thread& thread : threads) thread.join();
    for (const Status& end : ends) EXPECT_TRUE(end.ok()) << end.message();
    EXPECT_TRUE(uniformIn(index)) << "round " << round;
    const size_t files = namesIn(folder).size();
    EXPECT_TRUE(files == 4 || files == 2) << files << " files";
  }
}

// A link in place of a temporary file would lead the weights elsewhere.
TEST(WeightShards, LinksAreNotFollowed) {
  TemporaryFolder folder;
  const std::string index = folder / "w.safetensors.index.json";
  writeFile(folder / "other", "another's");
  auto writer = ShardWriter::make(index, kEntries, 1000);
  ASSERT_TRUE(writer.ok());
  const std::string temporary = folder / ".w-00001-of-00001.safetensors-" + writer->random();
  std::filesystem::remove(temporary);
  std::filesystem::create_symlink(folder / "other", temporary);
  EXPECT_FALSE(writer->write(0, 0, std::vector<std::byte>(8)).ok());
  EXPECT_EQ(readFile(folder / "other"), "another's");
}

TEST(WeightShards, WrongIndexes) {
  TemporaryFolder folder;
  ASSERT_TRUE(save(folder / "w.safetensors.index.json", 24).ok());
  auto refused = [&](const std::string& text) {
    writeFile(folder / "x.safetensors.index.json", text);
    return io::Safetensors::openWeights(folder / "x.safetensors.index.json").status().message();
  };
  EXPECT_EQ(refused(R"({"weight_map": {"a": "w-00001-of-00003.safetensors"}})"), "");
  EXPECT_THAT(refused("[]"), HasSubstr("weight_map"));
  EXPECT_THAT(refused("{"), HasSubstr("x.safetensors.index.json"));
  EXPECT_THAT(refused(R"({"weight_map": []})"), HasSubstr("weight_map"));
  EXPECT_THAT(refused(R"({"weight_map": {"a": "w-00002-of-00003.safetensors"}})"), HasSubstr("'a' is not in w-00002"));
  EXPECT_THAT(refused(R"({"weight_map": {"a": "v.safetensors"}})"), HasSubstr("v.safetensors"));
  for (const char* name : {"\"../w-00001-of-00003.safetensors\"", "\"/etc/passwd\"", "\"\"", "\"..\"", "1"})
    EXPECT_THAT(refused(cat(R"({"weight_map": {"a": )", name, "}}")), HasSubstr("not in a file of this folder"))
        << name;
  EXPECT_THAT(io::Safetensors::openWeights(folder.path()).status().message(), HasSubstr("neither"));
  EXPECT_FALSE(io::isShardIndex("/w/.safetensors.index.json"));
  EXPECT_FALSE(io::isShardIndex("/w/model.safetensors"));
}

// Any range of a permuted parameter goes to the places where the whole one has it.
TEST(WeightShards, RunsOfRangesAreThoseOfTheWhole) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    plan::Parameter parameter;
    std::vector<int64_t> permutation(1 + random() % 4);
    std::iota(permutation.begin(), permutation.end(), 0);
    std::shuffle(permutation.begin(), permutation.end(), random);
    uint64_t count = 1;
    for (int64_t d : permutation) {
      parameter.add_permutation(d);
      parameter.add_shape(1 + static_cast<int64_t>(random() % 5));
      count *= static_cast<uint64_t>(parameter.shape(parameter.shape_size() - 1));
    }
    std::vector<uint32_t> values(count), whole(count), ours(count, ~0u);
    std::iota(values.begin(), values.end(), 0);
    exec::planToNamed(parameter, reinterpret_cast<const std::byte*>(values.data()), 4,
                      reinterpret_cast<std::byte*>(whole.data()));
    for (uint64_t begin = 0; begin < count;) {
      const uint64_t end = std::min(count, begin + 1 + random() % count);
      uint64_t written = 0;
      Status status =
          exec::forEachNamedRun(parameter, begin, std::as_bytes(std::span(values).subspan(begin, end - begin)), 4,
                                [&](uint64_t place, std::span<const std::byte> run) {
                                  EXPECT_LE(place + run.size() / 4, count);
                                  std::memcpy(ours.data() + place, run.data(), run.size());
                                  written += run.size() / 4;
                                  return Status();
                                });
      ASSERT_TRUE(status.ok());
      EXPECT_EQ(written, end - begin);
      begin = end;
    }
    EXPECT_EQ(ours, whole) << "round " << round;
  }
}

}  // namespace
}  // namespace sheaf
