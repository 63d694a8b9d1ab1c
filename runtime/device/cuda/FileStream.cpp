#include "runtime/device/cuda/FileStream.h"

#include <algorithm>
#include <chrono>

namespace sheaf::cuda {
namespace {

// A thread that waits for the stream looks again after a pause, which doubles up to this: a transfer may begin a step
// after it was requested, and the next chunk of one that has begun is there at once.
constexpr std::chrono::microseconds kLongestPause(100);

// Of what follows `begin`, the bytes of a chunk.
uint64_t bytesAt(uint64_t begin, uint64_t bytes, uint64_t chunk) {
  return std::min(chunk, bytes - begin);
}

}  // namespace

Expected<std::unique_ptr<FileStream>> FileStream::create(cpu::FileArena& files, const plan::FileStaging& staging,
                                                         int node, Fail fail) {
  std::unique_ptr<FileStream> stream(new FileStream(files, staging, std::move(fail)));
  Expected<PinnedMemory> words = makePinned(sizeof(HandOver));
  if (!words.ok()) return words.status();
  stream->words_ = std::move(*words);
  if (staging.bytes() > 0) {
    auto memory = HostArena::create(staging.bytes(), node, false, "transfers of files");
    if (!memory.ok()) return memory.status();
    stream->memory_ = std::move(*memory);
  }
  stream->thread_ = std::thread([raw = stream.get()] { raw->work(); });
  return stream;
}

FileStream::~FileStream() {
  stop();
  {
    std::lock_guard lock(mutex_);
    end_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void FileStream::stop() {
  if (words_) __atomic_store_n(&words().stop, 1, __ATOMIC_RELEASE);
}

void FileStream::request(const Request& request) {
  {
    std::lock_guard lock(mutex_);
    requests_.push_back(request);
  }
  changed_.notify_one();
}

void FileStream::work() {
  for (;;) {
    Request request;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return end_ || !requests_.empty(); });
      if (end_) return;
      request = requests_.front();
      requests_.pop_front();
    }
    if (Status status = perform(request); !status.ok()) fail_(*request.instruction, status.message());
  }
}

bool FileStream::await() {
  ++awaited_;
  std::chrono::microseconds pause(0);
  while (__atomic_load_n(&words().reported, __ATOMIC_ACQUIRE) < awaited_) {
    if (__atomic_load_n(&words().stop, __ATOMIC_ACQUIRE) != 0) return false;
    if (pause.count() == 0)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(pause);
    pause = std::min(std::max(2 * pause, std::chrono::microseconds(1)), kLongestPause);
  }
  return __atomic_load_n(&words().stop, __ATOMIC_ACQUIRE) == 0;
}

void FileStream::report() {
  __atomic_store_n(&words().done, ++done_, __ATOMIC_RELEASE);
}

Status FileStream::move(const Request& request, uint64_t begin, std::span<std::byte> memory) {
  return request.read ? files_.read(request.offset + begin, memory) : files_.write(request.offset + begin, memory);
}

// The other side of enqueue(): as often as one reports, the other awaits.
Status FileStream::perform(const Request& request) {
  if (!request.onDevice) {
    if (!await()) return {};
    SHEAF_RETURN_IF_ERROR(move(request, 0, {request.memory, request.bytes}));
    report();
    return {};
  }
  const uint64_t chunks = chunksOf(request);
  for (uint64_t i = 0; i < chunks; ++i) {
    // Reading begins when the stream has come to the transfer, and a slot is filled again when it has been emptied.
    // Writing waits for each chunk.
    if (!request.read || i == 0 || i >= staging_.slots)
      if (!await()) return {};
    const uint64_t begin = i * staging_.chunk;
    SHEAF_RETURN_IF_ERROR(move(request, begin, {slot(i), bytesAt(begin, request.bytes, staging_.chunk)}));
    report();
  }
  return {};
}

Status FileStream::enqueue(const Request& request, cudaStream_t stream) {
  auto turn = [&](uint32_t report, uint32_t await) {
    return report + await == 0 ? Status() : check(handOver(&words(), report, await, stream), "cannot wait for a file");
  };
  if (!request.onDevice) return turn(1, 1);
  const uint64_t chunks = chunksOf(request), slots = staging_.slots;
  for (uint64_t i = 0; i < chunks; ++i) {
    // A read's first turn says that it may begin, a later one that the slot before can be filled again, if it is to be.
    // A write's turns say that the chunk before is there, and wait for a slot.
    SHEAF_RETURN_IF_ERROR(request.read ? turn(i == 0 || i - 1 + slots < chunks, 1) : turn(i > 0, i >= slots));
    const uint64_t begin = i * staging_.chunk, bytes = bytesAt(begin, request.bytes, staging_.chunk);
    SHEAF_RETURN_IF_ERROR(
        request.read ? check(cudaMemcpyAsync(request.memory + begin, slot(i), bytes, cudaMemcpyHostToDevice, stream),
                             "cannot copy to the GPU")
                     : check(cudaMemcpyAsync(slot(i), request.memory + begin, bytes, cudaMemcpyDeviceToHost, stream),
                             "cannot copy from the GPU"));
  }
  return request.read ? Status() : turn(1, static_cast<uint32_t>(std::min(chunks, slots)));
}

}  // namespace sheaf::cuda
