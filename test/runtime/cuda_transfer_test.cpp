// Transfers between a GPU, pinned host memory and files: one by one and in graphs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <numeric>

#include "runtime/plan/RankMemory.h"
#include "test/runtime/CudaTesting.h"
#include "test/runtime/TrainingPlan.h"
#include "test/runtime/Transfers.h"

namespace sheaf::testing {
namespace {

using plan::Buffer, plan::Transfer;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Enough for two steps before graphs, the capture of both, and launches of both.
constexpr int kRounds = 6;
constexpr uint64_t kChunk = 4 << 20;

class CudaTransferTest : public CudaTest {
 protected:
  DeviceOptions options(bool graphs) const {
    DeviceOptions options;
    options.graphs = graphs;
    options.offloadFolders = {folder_.path()};
    return options;
  }
  TemporaryFolder folder_;
};

uint64_t offsetOf(const PlanBuilder& builder, uint32_t buffer) {
  return builder.plan.buffers(static_cast<int>(buffer)).offset();
}

TEST_F(CudaTransferTest, ThroughEverySpace) {
  // Around the sizes of blocks, and of one, two and more chunks.
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{4097}, kChunk, kChunk + 12345, 2 * kChunk + 1}) {
    PlanBuilder builder;
    builder.buffer(128);  // so that the others do not begin with a page
    const uint32_t a = builder.buffer(bytes), b = builder.buffer(bytes), c = builder.buffer(bytes);
    const uint32_t host = bufferIn(builder, Buffer::HOST, bytes, 128),
                   back = bufferIn(builder, Buffer::HOST, bytes, plan::aligned(bytes) + 256);
    const uint32_t file = bufferIn(builder, Buffer::FILE, bytes, 4096),
                   other = bufferIn(builder, Buffer::FILE, bytes, (bytes / 4096 + 2) * 4096);
    transfer(builder, Transfer::TO_HOST, a, host);
    transfer(builder, Transfer::TO_DEVICE, host, b);
    transfer(builder, Transfer::WRITE_FILE, b, file);
    transfer(builder, Transfer::READ_FILE, file, c);
    // Between files and the host.
    transfer(builder, Transfer::WRITE_FILE, host, other);
    transfer(builder, Transfer::READ_FILE, other, back);
    for (const bool graphs : {true, false}) {
      Contexts contexts = openCuda(builder.plan, options(graphs));
      ASSERT_EQ(contexts.size(), 1u);
      for (int round = 0; round < (graphs ? kRounds : 2); ++round) {
        const std::vector<std::byte> values = numbers(bytes, static_cast<unsigned>(round));
        ASSERT_TRUE(contexts[0]->write(offsetOf(builder, a), values).ok());
        expectOk(runBodies(builder.plan, contexts));
        std::vector<std::byte> found(bytes);
        for (const uint32_t buffer : {host, b, file, c, other, back}) {
          const Buffer& place = builder.plan.buffers(static_cast<int>(buffer));
          ASSERT_TRUE(contexts[0]->readSpace(place.space(), place.offset(), found).ok());
          EXPECT_TRUE(found == values) << bytes << " bytes in buffer " << buffer << ", round " << round
                                       << (graphs ? " with graphs" : "");
        }
      }
    }
  }
}

// A buffer of two chunks goes from stream to stream and space to space, with new values each round; its last ones are
// permuted twice a round. A copy on another stream, or one that is not waited for, leaves an old value somewhere.
TEST_F(CudaTransferTest, EventsOrderTransfers) {
  PlanBuilder builder;
  for (const char* stream : {"to_host", "file_out", "file_in"}) builder.plan.add_streams(stream);
  constexpr int64_t kCount = 3000;  // of four bytes
  constexpr uint64_t kPart = kCount * 4, kBytes = 2 * kChunk, kFirst = kBytes - kPart;
  const uint32_t indices = builder.buffer(kCount * 8), value = builder.buffer(kPart), moved = builder.buffer(kBytes);
  const uint32_t fetched = builder.buffer(kBytes), read = builder.buffer(kBytes);
  const uint32_t host = bufferIn(builder, Buffer::HOST, kBytes), file = bufferIn(builder, Buffer::FILE, kBytes);
  auto last = [&](uint32_t buffer, plan::Access access) {
    plan::Operand operand = builder.operand(buffer, access);
    operand.set_offset(operand.bytes() - kPart);
    operand.set_bytes(kPart);
    return operand;
  };
  auto gather = [&](uint32_t from, uint32_t to) {
    builder.call(
        plan::GatherCall{.outer = 1, .rows = kCount, .inner = 1, .count = kCount, .elementBytes = 4, .indexBytes = 8},
        {last(from, plan::READ), builder.operand(indices, plan::READ), last(to, plan::WRITE)});
  };
  builder.wait(4, 0);
  gather(value, moved);
  builder.record(0, 0);
  builder.wait(0, 3);
  transfer(builder, Transfer::TO_HOST, moved, host, 0, 0, 3);
  builder.record(1, 3);
  builder.wait(1, 2);
  transfer(builder, Transfer::TO_DEVICE, host, fetched, 0, 0, 2);
  builder.record(2, 2);
  builder.wait(2, 4);
  transfer(builder, Transfer::WRITE_FILE, fetched, file, 0, 0, 4);
  builder.record(3, 4);
  builder.wait(3, 5);
  transfer(builder, Transfer::READ_FILE, file, read, 0, 0, 5);
  builder.record(5, 5);
  builder.wait(5, 0);
  gather(read, value);
  builder.record(4, 0);
  std::vector<int64_t> permutation(kCount);
  for (int64_t i = 0; i < kCount; ++i) permutation[static_cast<size_t>(i)] = (i * 7 + 3) % kCount;
  for (const bool graphs : {true, false}) {
    Contexts contexts = openCuda(builder.plan, options(graphs));
    ASSERT_EQ(contexts.size(), 1u);
    std::vector<float> values(kCount), expected;
    std::iota(values.begin(), values.end(), 0.0f);
    writeBuffer(*contexts[0], builder.plan, indices, permutation);
    writeBuffer(*contexts[0], builder.plan, value, values);
    for (int round = 0; round < kRounds; ++round) {
      const std::vector<std::byte> first = numbers(kFirst, static_cast<unsigned>(round));
      ASSERT_TRUE(contexts[0]->write(offsetOf(builder, moved), first).ok());
      expectOk(runBodies(builder.plan, contexts));
      std::vector<std::byte> found(kFirst);
      ASSERT_TRUE(contexts[0]->read(offsetOf(builder, read), found).ok());
      EXPECT_TRUE(found == first) << "round " << round << (graphs ? " with graphs" : "");
    }
    for (int visit = 0; visit < 2 * kRounds; ++visit) {
      expected.clear();
      for (int64_t from : permutation) expected.push_back(values[static_cast<size_t>(from)]);
      values = expected;
    }
    EXPECT_TRUE(readBuffer<float>(*contexts[0], builder.plan, value) == values) << (graphs ? "with graphs" : "without");
  }
}

TEST_F(CudaTransferTest, RanksThatShareAGpuHaveTheirOwnSpaces) {
  PlanBuilder builder;
  builder.plan.set_ranks(2);
  const uint32_t a = builder.buffer(8192), b = builder.buffer(8192);
  const uint32_t host = bufferIn(builder, Buffer::HOST, 8192), file = bufferIn(builder, Buffer::FILE, 8192);
  transfer(builder, Transfer::TO_HOST, a, host);
  transfer(builder, Transfer::WRITE_FILE, a, file);
  transfer(builder, Transfer::READ_FILE, file, b);
  DeviceOptions two = options(true);
  two.ranks = 2;
  Contexts contexts = openCuda(builder.plan, two);
  ASSERT_EQ(contexts.size(), 2u);
  for (unsigned rank = 0; rank < 2; ++rank) writeBuffer(*contexts[rank], builder.plan, a, numbers(8192, rank));
  expectOk(runBodies(builder.plan, contexts, kRounds));
  for (unsigned rank = 0; rank < 2; ++rank) {
    std::vector<std::byte> found(8192);
    ASSERT_TRUE(contexts[rank]->readSpace(Buffer::HOST, 0, found).ok());
    EXPECT_EQ(found, numbers(8192, rank));
    EXPECT_EQ(readBuffer<std::byte>(*contexts[rank], builder.plan, b), numbers(8192, rank));
  }
}

TEST_F(CudaTransferTest, HostAccess) {
  PlanBuilder builder;
  builder.buffer(128);
  bufferIn(builder, Buffer::HOST, 1000);
  bufferIn(builder, Buffer::FILE, 10000);
  Contexts contexts = openCuda(builder.plan, options(true));
  ASSERT_EQ(contexts.size(), 1u);
  for (const auto& [space, size] : {std::pair{Buffer::HOST, 1000}, {Buffer::FILE, 10000}}) {
    const std::vector<std::byte> values = numbers(100, 5);
    ASSERT_TRUE(contexts[0]->writeSpace(space, 800, values).ok());
    std::vector<std::byte> found(100);
    ASSERT_TRUE(contexts[0]->readSpace(space, 800, found).ok());
    EXPECT_EQ(found, values);
    ASSERT_TRUE(contexts[0]->readSpace(space, 700, found).ok());
    EXPECT_EQ(found, std::vector<std::byte>(100)) << "new memory is not zero";
    const uint64_t end = static_cast<uint64_t>(size);
    EXPECT_FALSE(contexts[0]->readSpace(space, end - 99, found).ok());
    EXPECT_FALSE(contexts[0]->writeSpace(space, end - 99, values).ok());
  }
}

// An error of input or output ends the run, with the instruction's name; nothing waits for ever for what does not come.
TEST_F(CudaTransferTest, AFileThatCannotBeRead) {
  PlanBuilder builder;
  const uint32_t a = builder.buffer(3 * kChunk), file = bufferIn(builder, Buffer::FILE, 3 * kChunk);
  builder.plan.mutable_buffers(static_cast<int>(file))->set_name("state");
  transfer(builder, Transfer::READ_FILE, file, a);
  transfer(builder, Transfer::READ_FILE, file, a);
  for (const int damaged : {0, 2, kRounds - 1}) {  // before graphs, when they are captured, when they are launched
    Contexts contexts = openCuda(builder.plan, options(true));
    ASSERT_EQ(contexts.size(), 1u);
    expectOk(runBodies(builder.plan, contexts, damaged));
    std::filesystem::resize_file(folder_ / "rank-0.arena", kChunk);
    const Status status = runBodies(builder.plan, contexts)[0];
    EXPECT_THAT(status.message(), AllOf(HasSubstr("rank 0: body instruction 0 (read_file 'move'"),
                                        HasSubstr("rank-0.arena: it ends at byte")));
    EXPECT_EQ(contexts[0]->synchronize().message(), status.message());
  }
}

TEST_F(CudaTransferTest, PinnedMemoryIsWhatThePlanNeeds) {
  PlanBuilder builder;
  const uint32_t large = builder.buffer(3 * kChunk), small = builder.buffer(5000);
  const uint32_t host = bufferIn(builder, Buffer::HOST, 12345 * 4096),
                 file = bufferIn(builder, Buffer::FILE, 3 * kChunk);
  transfer(builder, Transfer::TO_HOST, small, host, 0, 5000);
  EXPECT_EQ(plan::pinnedBytes(builder.plan), 12345u * 4096);
  // Two chunks for large transfers, as much as it takes for small ones, on each stream that has some.
  transfer(builder, Transfer::READ_FILE, file, large);
  transfer(builder, Transfer::WRITE_FILE, small, file, 0, 5000, 1);
  EXPECT_EQ(plan::pinnedBytes(builder.plan), 12345u * 4096 + 2 * kChunk + 8192);
  std::map<std::string, std::string> notes;
  DeviceOptions noting = options(true);
  noting.note = [&](const std::string& name, const std::string& value) { notes[name] = value; };
  ASSERT_EQ(openCuda(builder.plan, noting).size(), 1u);
  EXPECT_EQ(notes["pinned_bytes"], std::to_string(plan::pinnedBytes(builder.plan)));
  EXPECT_THAT(notes["file_input_output"], ::testing::AnyOf("direct", "through the page cache"));
  EXPECT_THAT(notes["pinned_on_node"], ::testing::Not(""));
}

TEST_F(CudaTransferTest, KindsThatDoNotFitTheirSpaces) {
  PlanBuilder builder;
  const uint32_t a = builder.buffer(4096), host = bufferIn(builder, Buffer::HOST, 4096);
  transfer(builder, Transfer::READ_FILE, host, a);
  EXPECT_THAT(cudaOpenError(builder.plan), AllOf(HasSubstr("rank 0: body instruction 0 (read_file 'move'"),
                                                 HasSubstr("its operands lie in other spaces than its kind says")));
}

TEST_F(CudaTransferTest, FilesNeedAFolder) {
  PlanBuilder builder;
  bufferIn(builder, Buffer::FILE, 4096);
  EXPECT_THAT(cudaOpenError(builder.plan), HasSubstr("--offload-dir DIR"));
}

}  // namespace
}  // namespace sheaf::testing
