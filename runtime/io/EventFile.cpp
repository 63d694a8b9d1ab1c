#include "runtime/io/EventFile.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "runtime/base/NewFiles.h"
#include "runtime/base/Text.h"
#include "runtime/io/event_file.pb.h"

namespace sheaf::io {
namespace {

constexpr std::array<uint32_t, 256> makeCrcTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82F63B78u : 0);
    table[byte] = crc;
  }
  return table;
}

double secondsSince1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Little endian, as a record has its length and checksums.
template <typename T>
void append(std::string& to, T number) {
  static_assert(std::endian::native == std::endian::little);
  to.append(reinterpret_cast<const char*>(&number), sizeof number);
}

// Records hold checksums of data that may hold checksums themselves: so they are rotated and offset.
uint32_t masked(uint32_t crc) {
  return std::rotr(crc, 15) + 0xA282EAD8u;
}

Event now(int64_t step) {
  Event event;
  event.set_wall_time(secondsSince1970());
  event.set_step(step);
  return event;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = makeCrcTable();
  uint32_t crc = ~0u;
  for (const char byte : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<uint8_t>(byte)) & 255];
  return ~crc;
}

Expected<EventFile> EventFile::create(const std::string& folder) {
  if (auto made = makeFolders(folder); !made.ok()) return made.status();
  char host[256] = "localhost";
  if (gethostname(host, sizeof host - 1) != 0) std::strcpy(host, "localhost");
  const auto seconds = static_cast<int64_t>(secondsSince1970());
  // Runs of one second and process number, in containers, say, still get files of their own.
  for (int attempt = 0; attempt < 1000; ++attempt) {
    EventFile file(cat(folder, "/events.out.tfevents.", seconds, ".", host, ".", getpid(), ".", attempt));
    const int descriptor = createExclusive(file.path_);
    if (descriptor < 0 && errno == EEXIST) continue;
    if (descriptor >= 0) file.file_.reset(fdopen(descriptor, "w"));
    if (!file.file_) return Status::error(cat("cannot write ", file.path_, ": ", std::strerror(errno)));
    Event version = now(0);
    version.set_file_version("brain.Event:2");
    SHEAF_RETURN_IF_ERROR(file.record(version.SerializeAsString()));
    return file;
  }
  return Status::error(cat("cannot find a free name for an event file in ", folder));
}

Status EventFile::start(int64_t step) {
  Event event = now(step);
  event.mutable_session_log()->set_status(EventSession::START);
  return record(event.SerializeAsString());
}

Status EventFile::write(int64_t step, const Scalars& scalars) {
  Event event = now(step);
  for (const auto& [tag, number] : scalars) {
    EventSummary::Value& value = *event.mutable_summary()->add_value();
    value.set_tag(tag);
    value.set_simple_value(static_cast<float>(number));
  }
  return record(event.SerializeAsString());
}

Status EventFile::record(const std::string& bytes) {
  std::string head, text;
  append(head, static_cast<uint64_t>(bytes.size()));
  text = head;
  append(text, masked(crc32c(head)));
  text += bytes;
  append(text, masked(crc32c(bytes)));
  if (std::fwrite(text.data(), 1, text.size(), file_.get()) != text.size() || std::fflush(file_.get()) != 0)
    return Status::error(cat("cannot write ", path_, ": ", std::strerror(errno)));
  return {};
}

}  // namespace sheaf::io
