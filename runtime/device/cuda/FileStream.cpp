#include "runtime/device/cuda/FileStream.h"

#include <algorithm>

namespace sheaf::cuda {
namespace {

// Of what follows `begin`, the bytes of a chunk.
uint64_t bytesAt(uint64_t begin, uint64_t bytes, uint64_t chunk) {
  return std::min(chunk, bytes - begin);
}

}  // namespace

Expected<std::unique_ptr<FileStream>> FileStream::create(cpu::FileArena& files, const plan::FileStaging& staging,
                                                         int node, HostThread::Fail fail) {
  std::unique_ptr<FileStream> stream(new FileStream(files, staging));
  if (staging.bytes() > 0) {
    auto memory = HostArena::create(staging.bytes(), node, false, "transfers of files");
    if (!memory.ok()) return memory.status();
    stream->memory_ = std::move(*memory);
  }
  auto thread = HostThread::create(std::move(fail));
  if (!thread.ok()) return thread.status();
  stream->thread_ = std::move(*thread);
  return stream;
}

void FileStream::request(const plan::Instruction& instruction, const FileTransfer& transfer, bool odd) {
  const uint64_t offset = transfer.offsetAt(odd);
  thread_->request(instruction, [this, transfer, offset] { return perform(transfer, offset); });
}

Status FileStream::move(const FileTransfer& transfer, uint64_t offset, std::span<std::byte> memory) {
  return transfer.read ? files_.read(offset, memory) : files_.write(offset, memory);
}

// The other side of enqueue(): as often as one reports, the other awaits.
Status FileStream::perform(const FileTransfer& transfer, uint64_t offset) {
  if (!transfer.onDevice) {
    if (!thread_->await()) return {};
    SHEAF_RETURN_IF_ERROR(move(transfer, offset, {transfer.memory, transfer.bytes}));
    thread_->report();
    return {};
  }
  const uint64_t chunks = chunksOf(transfer);
  for (uint64_t i = 0; i < chunks; ++i) {
    // Reading begins when the stream has come to the transfer, and a slot is filled again when it has been emptied.
    // Writing waits for each chunk.
    if (!transfer.read || i == 0 || i >= staging_.slots)
      if (!thread_->await()) return {};
    const uint64_t begin = i * staging_.chunk;
    SHEAF_RETURN_IF_ERROR(move(transfer, offset + begin, {slot(i), bytesAt(begin, transfer.bytes, staging_.chunk)}));
    thread_->report();
  }
  return {};
}

Status FileStream::enqueue(const FileTransfer& transfer, cudaStream_t stream) {
  auto turn = [&](uint32_t report, uint32_t await) { return thread_->turn(report, await, stream); };
  if (!transfer.onDevice) return turn(1, 1);
  const uint64_t chunks = chunksOf(transfer), slots = staging_.slots;
  for (uint64_t i = 0; i < chunks; ++i) {
    // A read's first turn says that it may begin, a later one that the slot before can be filled again, if it is to be.
    // A write's turns say that the chunk before is there, and wait for a slot.
    SHEAF_RETURN_IF_ERROR(transfer.read ? turn(i == 0 || i - 1 + slots < chunks, 1) : turn(i > 0, i >= slots));
    const uint64_t begin = i * staging_.chunk, bytes = bytesAt(begin, transfer.bytes, staging_.chunk);
    SHEAF_RETURN_IF_ERROR(
        transfer.read ? check(cudaMemcpyAsync(transfer.memory + begin, slot(i), bytes, cudaMemcpyHostToDevice, stream),
                              "cannot copy to the GPU")
                      : check(cudaMemcpyAsync(slot(i), transfer.memory + begin, bytes, cudaMemcpyDeviceToHost, stream),
                              "cannot copy from the GPU"));
  }
  return transfer.read ? Status() : turn(1, static_cast<uint32_t>(std::min(chunks, slots)));
}

}  // namespace sheaf::cuda
