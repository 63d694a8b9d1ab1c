#include "tools/sheaf/DeepSpeed.h"

#include <cstdio>
#include <span>

#include "runtime/base/MappedFile.h"
#include "runtime/base/Print.h"
#include "runtime/base/RegularFile.h"
#include "runtime/base/Text.h"
#include "tools/sheaf/DeepSpeedConfig.h"

namespace sheaf::tool {
namespace {

constexpr uint64_t kMaxBytes = 16 << 20;

// A key with what is not printed as JSON escapes it.
std::string escaped(const std::string& key) {
  const std::string text = json::write(json::Value(key));
  return text.substr(1, text.size() - 2);
}

}  // namespace

Status takeDeepSpeed(const options::Table& table, const std::string& path, int64_t ranks,
                     const std::vector<std::string>& ignored, options::Given& given, void* target) {
  Expected<std::string> text = readSmallFile(path, kMaxBytes, "a configuration");
  if (!text.ok()) return text.status();
  SHEAF_RETURN_IF_ERROR(refuseLfsPointer(path, std::as_bytes(std::span(*text))));
  Expected<json::Value> config = json::parse(*text);
  if (!config.ok()) return config.status();
  Expected<DeepSpeedOptions> taken =
      translateDeepSpeed(*config, {ranks, given.values, std::set<std::string>(ignored.begin(), ignored.end())});
  if (!taken.ok()) return taken.status();
  std::string refused;
  for (const DeepSpeedKey& key : taken->keys)
    if (key.outcome == DeepSpeedKey::kRefused) refused += cat("\n  ", escaped(key.key), ": ", key.text);
  if (!refused.empty())
    return Status::error(
        cat("these change results, and are not supported; change the file, or give --ignore KEY for each:", refused));
  static constexpr const char* kOutcomes[] = {"applied", "equivalent", "no effect", "refused", "ignored"};
  for (const DeepSpeedKey& key : taken->keys)
    out::fprintf(stderr, "sheaf: %s: %s: %s\n", escaped(key.key).c_str(), kOutcomes[key.outcome], key.text.c_str());
  for (const auto& [name, value] : taken->options) SHEAF_RETURN_IF_ERROR(table.take(name, {value}, target, given));
  return {};
}

}  // namespace sheaf::tool
