#include <algorithm>
#include <limits>

#include "runtime/base/Text.h"
#include "runtime/io/Checkpoint.h"

namespace sheaf::io {
namespace {

constexpr int64_t kFormat = 1;
constexpr int64_t kMaxSteps = int64_t{1} << 48;  // that --steps takes

json::Value integers(const std::vector<int64_t>& values) {
  return json::Array(values.begin(), values.end());
}

uint64_t checksumOf(const json::Value& state) {
  return xxh64(json::write(state));
}

// Reads members with their types; remembers whether anything was missing.
class Reader {
 public:
  explicit Reader(const json::Value& value) : object_(value.object()) { ok_ = object_ != nullptr; }
  bool ok() const { return ok_; }

  int64_t integer(const char* name, int64_t least = 0) {
    const json::Value* value = find(name);
    const int64_t* integer = value ? value->integer() : nullptr;
    if (!integer || *integer < least) ok_ = false;
    return integer ? *integer : 0;
  }
  std::string string(const char* name) {
    const json::Value* value = find(name);
    const std::string* string = value ? value->string() : nullptr;
    if (!string) ok_ = false;
    return string ? *string : std::string();
  }
  const json::Array& array(const char* name) {
    static const json::Array none;
    const json::Value* value = find(name);
    const json::Array* array = value ? value->array() : nullptr;
    if (!array) ok_ = false;
    return array ? *array : none;
  }
  std::vector<int64_t> integers(const char* name) {
    std::vector<int64_t> values;
    for (const json::Value& value : array(name)) {
      if (!value.integer() || *value.integer() < 0) ok_ = false;
      values.push_back(value.integer() ? *value.integer() : 0);
    }
    return values;
  }
  const json::Value* find(const char* name) const { return object_ ? object_->find(name) : nullptr; }

 private:
  const json::Object* object_;
  bool ok_;
};

std::optional<uint64_t> parseHex(const std::string& text) {
  if (text.size() != 16) return std::nullopt;
  uint64_t value = 0;
  for (char c : text) {
    int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return std::nullopt;
    value = value << 4 | static_cast<uint64_t>(digit);
  }
  return value;
}

std::optional<DataType> floatNamed(const std::string& name) {
  for (const plan::ElementFacts& row : plan::kElements)
    if (row.isFloatInPlans() && name == row.name) return dataTypeOf(row.type);
  return std::nullopt;
}

bool parseParameter(const json::Value& value, SavedParameter& parameter) {
  Reader reader(value);
  parameter.name = reader.string("name");
  std::optional<DataType> type = floatNamed(reader.string("type"));
  parameter.shape = reader.integers("shape");
  parameter.permutation = reader.integers("permutation");
  bool strings = true;
  for (const json::Value& state : reader.array("states")) {
    strings &= state.string() != nullptr;
    if (state.string()) parameter.states.push_back(*state.string());
  }
  // States of earlier versions do not say it.
  const json::Value* frozen = reader.find("frozen");
  parameter.frozen = frozen && frozen->boolean() && *frozen->boolean();
  if (type) parameter.type = *type;
  return reader.ok() && type && strings;
}

bool parseFile(const json::Value& value, Manifest::File& file) {
  Reader reader(value);
  file.name = reader.string("name");
  file.size = static_cast<uint64_t>(reader.integer("size"));
  std::optional<uint64_t> checksum = parseHex(reader.string("checksum"));
  file.checksum = checksum.value_or(0);
  // The name is joined to the folder's path: it must be a name, not a path.
  bool plain = !file.name.empty() && file.name[0] != '.' && file.name.find('/') == std::string::npos &&
               file.name.find('\0') == std::string::npos;
  return reader.ok() && checksum && plain;
}

}  // namespace

Status checkLength(const TrainingLength& length, int64_t step) {
  if (length.steps < std::max<int64_t>(step, 1) || length.steps > kMaxSteps)
    return Status::error(cat("it is the state after ", step, " steps of a training of ", length.steps));
  if (length.batch < 1 || length.rows < 0)
    return Status::error(cat("its training has batches of ", length.batch, " rows, of ", length.rows));
  return {};
}

std::string manifestText(const Manifest& manifest) {
  json::Array parameters, files;
  for (const SavedParameter& parameter : manifest.parameters)
    parameters.push_back(json::Object{{"name", parameter.name},
                                      {"type", std::string(nameOf(parameter.type))},
                                      {"shape", integers(parameter.shape)},
                                      {"permutation", integers(parameter.permutation)},
                                      {"states", json::Array(parameter.states.begin(), parameter.states.end())},
                                      {"frozen", parameter.frozen}});
  for (const Manifest::File& file : manifest.files)
    files.push_back(json::Object{{"name", file.name}, {"size", file.size}, {"checksum", hexText(file.checksum)}});
  json::Object members{{"format", kFormat},
                       {"step", manifest.step},
                       {"samples", manifest.samples},
                       {"updates", manifest.updates},
                       {"seed", manifest.seed},
                       {"shuffle", manifest.shuffleSeed ? json::Value(*manifest.shuffleSeed) : json::Value()},
                       {"ranks", manifest.ranks},
                       {"zero", manifest.zeroStage},
                       {"model", manifest.model},
                       {"optimizer", manifest.optimizer},
                       {"parameters", std::move(parameters)},
                       {"files", std::move(files)}};
  if (manifest.lossScale)
    members.set("loss_scale",
                json::Object{{"scale", manifest.lossScale->scale}, {"good_steps", manifest.lossScale->goodSteps}});
  if (manifest.length)
    members.set("length", json::Object{{"steps", manifest.length->steps},
                                       {"schedule", manifest.length->schedule},
                                       {"batch", manifest.length->batch},
                                       {"rows", manifest.length->rows}});
  if (manifest.run.number != 0) {
    json::Array earlier;
    for (uint64_t number : manifest.run.earlier) earlier.push_back(hexText(number));
    members.set("run", json::Object{{"number", hexText(manifest.run.number)}, {"earlier", std::move(earlier)}});
  }
  if (manifest.cpu) members.set("cpu", plan::jsonOf(*manifest.cpu));
  json::Value state = std::move(members);
  std::string checksum = hexText(checksumOf(state));
  return json::write(json::Object{{"checksum", checksum}, {"state", std::move(state)}}, 1) + "\n";
}

Expected<Manifest> parseManifest(std::string_view text) {
  Expected<json::Value> value = json::parse(text);
  if (!value.ok()) return value.status();
  Reader outer(*value);
  std::optional<uint64_t> checksum = parseHex(outer.string("checksum"));
  const json::Value* state = outer.find("state");
  if (!outer.ok() || !checksum || !state) return Status::error("it is not a manifest of a saved state");
  // The checksum is of the state as our writer writes it, so that the file's own spacing does not matter.
  if (checksumOf(*state) != *checksum) return Status::error("its checksum does not match");
  Reader reader(*state);
  if (int64_t format = reader.integer("format"); format != kFormat)
    return Status::error(cat("its format is ", format, ", this program reads ", kFormat));
  Manifest manifest;
  manifest.step = reader.integer("step");
  manifest.samples = reader.integer("samples");
  manifest.updates = reader.integer("updates");
  manifest.seed = reader.integer("seed", std::numeric_limits<int64_t>::min());
  if (const json::Value* shuffle = reader.find("shuffle"); shuffle && shuffle->integer())
    manifest.shuffleSeed = *shuffle->integer();
  bool ok = true;
  if (const json::Value* scale = reader.find("loss_scale")) {
    Reader fields(*scale);
    const json::Value* value = fields.find("scale");
    manifest.lossScale = {.scale = 0, .goodSteps = fields.integer("good_steps")};
    ok = fields.ok() && value && value->number(manifest.lossScale->scale) && manifest.lossScale->scale > 0;
  }
  if (const json::Value* length = reader.find("length")) {
    Reader fields(*length);
    manifest.length = {.steps = fields.integer("steps"),
                       .schedule = fields.string("schedule"),
                       .batch = fields.integer("batch"),
                       .rows = fields.integer("rows")};
    ok &= fields.ok();
    if (Status status = checkLength(*manifest.length, manifest.step); fields.ok() && !status.ok()) return status;
  }
  if (const json::Value* run = reader.find("run")) {
    Reader fields(*run);
    const std::optional<uint64_t> number = parseHex(fields.string("number"));
    manifest.run.number = number.value_or(0);
    for (const json::Value& value : fields.array("earlier")) {
      const std::optional<uint64_t> one = value.string() ? parseHex(*value.string()) : std::nullopt;
      manifest.run.earlier.push_back(one.value_or(0));
      ok &= one.has_value();
    }
    ok &= fields.ok() && number && manifest.run.earlier.size() <= kMostEarlierRuns;
  }
  if (const json::Value* cpu = reader.find("cpu")) {
    manifest.cpu = plan::cpuIdentityOf(*cpu);
    ok &= manifest.cpu.has_value();
  }
  manifest.ranks = reader.integer("ranks", 1);
  manifest.zeroStage = reader.integer("zero");
  manifest.model = reader.string("model");
  manifest.optimizer = reader.string("optimizer");
  for (const json::Value& parameter : reader.array("parameters"))
    ok &= parseParameter(parameter, manifest.parameters.emplace_back());
  for (const json::Value& file : reader.array("files")) ok &= parseFile(file, manifest.files.emplace_back());
  if (!ok || !reader.ok()) return Status::error("a member is missing or of the wrong type");
  return manifest;
}

}  // namespace sheaf::io
