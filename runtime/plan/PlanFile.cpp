#include "runtime/plan/PlanFile.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/stubs/logging.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "runtime/base/AtomicFile.h"
#include "runtime/base/Hash.h"
#include "runtime/base/MappedFile.h"
#include "runtime/base/Text.h"
#include "runtime/plan/Types.h"
#include "runtime/plan/Upgrade.h"

namespace sheaf::plan {
namespace {

constexpr char kMagic[8] = {'S', 'H', 'E', 'A', 'F', 'P', 'L', 'N'};

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t reserved;
  uint64_t size;
  uint64_t hash;
};
static_assert(sizeof(Header) == kPlanHeaderBytes);

constexpr char kGraphMagic[8] = {'S', 'H', 'E', 'A', 'F', 'G', 'R', 'F'};

struct GraphHeader {
  char magic[8];
  uint64_t size;
  uint64_t hash;
};
static_assert(sizeof(GraphHeader) == 24);

// Keeps protobuf's first message about a text that is not UTF-8: protobuf would print it, write the text all the same,
// and refuse to read it. Installs a log handler for the whole process, which drops protobuf's other messages.
class TextErrors {
 public:
  TextErrors() {
    [[maybe_unused]] static const auto before = google::protobuf::SetLogHandler(&note);
    first_.clear();
  }
  // "sheaf.plan.Kernel.name", or nothing.
  static std::string field() {
    const size_t begin = first_.find('\''), end = begin == std::string::npos ? begin : first_.find('\'', begin + 1);
    return end == std::string::npos ? first_ : first_.substr(begin + 1, end - begin - 1);
  }

 private:
  static void note(google::protobuf::LogLevel, const char*, int, const std::string& message) {
    if (first_.empty()) first_ = message;
  }
  static thread_local std::string first_;
};
thread_local std::string TextErrors::first_;

// Fills the first bytes of a file that otherwise holds the payload.
void writeHeader(std::string& file) {
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kPlanVersion;
  header.size = file.size() - sizeof header;
  header.hash = xxh64(std::string_view(file).substr(sizeof header));
  std::memcpy(file.data(), &header, sizeof header);
}

// What a file holds; the graph is empty where there is none.
struct Parts {
  std::span<const std::byte> payload, graph;
  uint64_t hash;  // the hash of the payload
};

Status sizeError(const char* what, const char* part, uint64_t announced, uint64_t found) {
  return Status::error(
      cat("the plan is ", what, ": its header announces ", announced, " bytes of ", part, ", the file has ", found));
}

Expected<Parts> partsOf(std::span<const std::byte> file) {
  Header header;
  if (file.size() < sizeof header || std::memcmp(file.data(), kMagic, sizeof kMagic) != 0)
    return Status::error("not a plan: it does not begin with SHEAFPLN; `sheaf compile` makes plans");
  std::memcpy(&header, file.data(), sizeof header);
  if (header.version < kOldestPlanVersion || header.version > kPlanVersion)
    return Status::error(otherVersion(header.version));
  if (header.reserved != 0) return Status::error("the plan is damaged: its header is not zero where it must be");
  std::span<const std::byte> rest = file.subspan(sizeof header);
  if (header.size > rest.size()) return sizeError("truncated", "payload", header.size, rest.size());
  if (header.size > kMaxPlanBytes || rest.size() - header.size > kMaxPlanBytes)
    return Status::error(
        cat("the plan is damaged: its payload or its graph is larger than ", bytesText(kMaxPlanBytes)));
  Parts parts{rest.first(header.size), {}, header.hash};
  rest = rest.subspan(header.size);
  if (!rest.empty()) {
    GraphHeader graph;
    if (rest.size() < sizeof graph || std::memcmp(rest.data(), kGraphMagic, sizeof kGraphMagic) != 0)
      return sizeError("followed by other bytes", "payload", header.size, header.size + rest.size());
    std::memcpy(&graph, rest.data(), sizeof graph);
    parts.graph = rest.subspan(sizeof graph);
    if (graph.size != parts.graph.size())
      return sizeError(graph.size > parts.graph.size() ? "truncated" : "followed by other bytes", "graph", graph.size,
                       parts.graph.size());
    if (xxh64(parts.graph) != graph.hash)
      return Status::error("the plan is damaged: the checksum of its graph does not match; compile the model again");
  }
  if (xxh64(parts.payload) != header.hash)
    return Status::error("the plan is damaged: its checksum does not match; compile the model again");
  return parts;
}

}  // namespace

bool isPlanFile(const std::string& path) {
  char magic[sizeof kMagic] = {};
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  std::ifstream(path, std::ios::binary).read(magic, sizeof magic);
  return std::memcmp(magic, kMagic, sizeof magic) == 0;
}

Expected<std::unique_ptr<Plan>> parsePlan(std::span<const std::byte> file) {
  Expected<Parts> parts = partsOf(file);
  if (!parts.ok()) return parts.status();
  auto plan = std::make_unique<Plan>();
  const TextErrors errors;
  if (!plan->ParseFromArray(parts->payload.data(), static_cast<int>(parts->payload.size())))
    return Status::error(
        cat("the plan is damaged: its payload is not a plan's protobuf",
            errors.field().empty() ? "" : cat("; the text of its field ", errors.field(), " is not UTF-8")));
  SHEAF_RETURN_IF_ERROR(upgrade(*plan));
  return plan;
}

Expected<std::unique_ptr<Plan>> readPlan(const std::string& path) {
  Expected<MappedFile> file = MappedFile::open(path);
  if (!file.ok()) return file.status();
  Expected<std::unique_ptr<Plan>> plan = parsePlan(file->bytes());
  if (!plan.ok()) return Status::error(cat(path, ": ", plan.status().message()));
  return plan;
}

Expected<std::string> readGraph(const std::string& path) {
  Expected<MappedFile> file = MappedFile::open(path);
  if (!file.ok()) return file.status();
  Expected<Parts> parts = partsOf(file->bytes());
  if (!parts.ok()) return Status::error(cat(path, ": ", parts.status().message()));
  return std::string(reinterpret_cast<const char*>(parts->graph.data()), parts->graph.size());
}

Expected<std::string> serializePlan(const Plan& plan) {
  size_t size = plan.ByteSizeLong();
  if (size > kMaxPlanBytes) return Status::error(cat("the plan is larger than 2 GiB (", bytesText(size), ")"));
  std::string file(sizeof(Header) + size, '\0');
  google::protobuf::io::ArrayOutputStream array(file.data() + sizeof(Header), static_cast<int>(size));
  google::protobuf::io::CodedOutputStream out(&array);
  out.SetSerializationDeterministic(true);
  const TextErrors errors;
  if (!plan.SerializeToCodedStream(&out)) return Status::error("the plan cannot be serialized");
  if (!errors.field().empty())
    return Status::error(cat("the plan cannot be written: the text of its field ", errors.field(),
                             " is not UTF-8; change the name in the model, or the path"));
  out.Trim();
  writeHeader(file);
  return file;
}

std::string planFile(std::string_view payload) {
  std::string file(sizeof(Header), '\0');
  file += payload;
  writeHeader(file);
  return file;
}

Expected<uint64_t> planHash(const std::string& path) {
  Expected<MappedFile> file = MappedFile::open(path);
  if (!file.ok()) return file.status();
  Expected<Parts> parts = partsOf(file->bytes());
  if (!parts.ok()) return Status::error(cat(path, ": ", parts.status().message()));
  return parts->hash;
}

Status writePlan(const std::string& path, const Plan& plan, std::string_view graph) {
  Expected<std::string> bytes = serializePlan(plan);
  if (!bytes.ok()) return bytes.status();
  if (!graph.empty()) {
    GraphHeader header{};
    std::memcpy(header.magic, kGraphMagic, sizeof kGraphMagic);
    header.size = graph.size();
    header.hash = xxh64(graph);
    bytes->append(reinterpret_cast<const char*>(&header), sizeof header);
    bytes->append(graph);
  }
  Expected<AtomicFile> file = AtomicFile::create(path);
  if (!file.ok()) return file.status();
  SHEAF_RETURN_IF_ERROR(file->write(std::as_bytes(std::span(*bytes))));
  return file->commit();
}

}  // namespace sheaf::plan
