#include "frontend/onnx/importer/Parameters.h"

#include "frontend/onnx/importer/OperandRoles.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Regex.h"
#include "runtime/base/Text.h"

using namespace mlir;

namespace sheaf::frontend {
namespace {

// The module of a node by its name where the exporter says nothing else: "/transformer/wte/Gather" of TorchScript's.
std::string moduleByName(const onnx::NodeProto& node) {
  const StringRef name = node.name();
  if (!name.starts_with("/")) return {};
  std::string module = name.drop_front().rsplit('/').first.str();
  if (module.size() + 1 == name.size()) return {};  // in no module
  std::replace(module.begin(), module.end(), '/', '.');
  return module;
}

// "a.b.weight" as torch.export spells it in the name of a placeholder: a_b_weight.
std::string mangled(StringRef name) {
  std::string result = name.str();
  for (char& c : result)
    if (!llvm::isAlnum(c)) c = '_';
  return result;
}

// Whether the node's expression names the placeholder of this parameter (kind 'p') or buffer (kind 'b').
bool mentions(const onnx::NodeProto& node, char kind, StringRef name) {
  StringRef expression = expressionOf(node);
  std::string placeholder = std::string("%") + kind + "_" + mangled(name);
  size_t at = expression.find(placeholder);
  if (at == StringRef::npos) return false;
  StringRef rest = expression.drop_front(at + placeholder.size());
  return rest.empty() || (!llvm::isAlnum(rest[0]) && rest[0] != '_');
}

bool endsLikeParameter(StringRef name) {
  return name.contains('.') && (name.ends_with("weight") || name.ends_with("bias"));
}

// True for the names that modules of torch.nn give trained tensors: "weight", "in_proj_bias", "weight_ih_l0_reverse".
// The last part of the name counts as a whole: "final_logits_bias" is a buffer. Paddle's names are "w_0" and "b_0".
bool namesWeight(StringRef name) {
  static const llvm::Regex names(
      "^((in|q|k|v|out)_proj_)?(weight|bias)$|_weight$|^(weight|bias)_[ih]h(_l[0-9]+)?(_reverse)?$|"
      "^weight_(hr_l[0-9]+(_reverse)?|g|v|orig)$|^bias_[kv]$|^original[01]?$|^[wb]_[0-9]+$");
  // Losses have weights for their terms, which are not trained.
  static const llvm::Regex ofLoss("(^|[._])(pos|class|cls|label|sample|loss)_weight$|(loss|criterion)[^.]*\\.",
                                  llvm::Regex::IgnoreCase);
  return names.match(memberName(name)) && !ofLoss.match(name);
}

// Whether models give this name to what they compute once and do not train.
bool namesBuffer(StringRef name) {
  StringRef leaf = memberName(name);
  return leaf.ends_with("_ids") || leaf.ends_with("_index") || leaf.contains("mask") || leaf.contains("inv_freq") ||
         leaf.starts_with("running_") || leaf.starts_with("lifted_tensor");
}

// True for "val_7", the name of a constant or of one of several nodes of an operator.
bool isExportersConstant(StringRef value) {
  return value.consume_front("val_") && !value.empty() && value.find_first_not_of("0123456789") == StringRef::npos;
}

// Whether a folded value, by its name, has its source's elements in their order: "unsqueeze_3". "val_7" says nothing.
bool namesView(StringRef value, bool unknown) {
  StringRef op = functionOf(value);
  if (op == "val") return unknown;
  return llvm::is_contained(
      {"unsqueeze", "squeeze", "view", "_unsafe_view", "reshape", "clone", "contiguous", "alias", "detach"}, op);
}

// True for a folded value that, by its name, has other elements than its source: "sub", "add_3".
bool namesArithmetic(StringRef value) {
  StringRef op = functionOf(value);
  return llvm::is_contained(
      {"add",  "sub",   "rsub",   "mul",   "div",     "neg",     "reciprocal", "exp",     "log",
       "sqrt", "rsqrt", "pow",    "abs",   "sign",    "sum",     "mean",       "sigmoid", "softplus",
       "tanh", "relu",  "square", "clamp", "maximum", "minimum", "max",        "min"},
      op);
}

}  // namespace

LogicalResult Parameters::analyse(const Model& model, const std::vector<const onnx::NodeProto*>& nodes,
                                  const llvm::StringMap<const onnx::TensorProto*>& initializers,
                                  const ImportOptions& options) {
  for (const onnx::NodeProto* node : nodes)
    for (int i = 0; i < node->input_size(); ++i)
      if (initializers.contains(node->input(i))) uses[node->input(i)].push_back({node, i});

  const bool byPyTorch = model.proto().producer_name() == "pytorch";
  // Inputs have a kind, too: they alone where every parameter was folded.
  bool signature = false;
  for (const auto* values : {&model.graph().input(), &model.graph().value_info()})
    for (const onnx::ValueInfoProto& value : *values) {
      signature |= !Model::metadata(value.metadata_props(), kSignatureKind).empty();
      optimizedExport |= !Model::metadata(value.metadata_props(), kFoldedFrom).empty();
    }

  auto isFolded = [&](const onnx::TensorProto& tensor) {
    return signature && !model.valueMetadata(tensor.name(), kFoldedFrom).empty();
  };
  // Named initializers first: a folded constant may be a view of one.
  SmallVector<const onnx::TensorProto*> anonymous;
  for (const onnx::TensorProto& tensor : model.graph().initializer()) {
    tensors[tensor.name()] = &tensor;
    ParameterRole& role = roles[tensor.name()];
    role.name = tensor.name();
    role.shape.assign(tensor.dims().begin(), tensor.dims().end());
    StringRef kind = model.valueMetadata(tensor.name(), kSignatureKind);
    if (!isFloatType(tensor.data_type()))
      role.reason = "integers";
    else if (tensor.dims_size() == 0 && kind != "PARAMETER" && !isFolded(tensor) &&
             (signature || !namesMember(tensor.name(), byPyTorch)))
      role.reason = "scalar";
    else if (kind == "PARAMETER" || !signature)
      role.parameter = role.trainable = true;
    else if (!kind.empty())
      role.reason = "a buffer of the module";
    else if (isFoldedNorm(tensor)) {
      role.parameter = role.trainable = true;
      role.reason = "folded with a BatchNormalization";
    } else {
      role.reason = "a constant of the exporter";
      anonymous.push_back(&tensor);
    }
    if (role.parameter) owner[role.name] = tensor.name();
    // TorchScript's exporter renames what it folded.
    if (isFoldedNorm(tensor) || tensor.name().starts_with("onnx::Conv_")) norms.push_back(tensor.name());
  }
  findStatistics();
  findSettings(model, nodes, signature);
  for (const onnx::TensorProto* tensor : anonymous) isFoldedParameter(model, *tensor, roles[tensor->name()]);
  if (byPyTorch && !signature) restoreTies(model, nodes);
  nameTied();
  const GraphSignature torchSignature(model);
  if (!torchSignature.all().empty())
    unmergeByExpressions(model, nodes, torchSignature);
  else if (optimizedExport)
    for (const onnx::TensorProto& tensor : model.graph().initializer()) unmergeByModules(tensor);

  if (!folded.empty())
    emitWarning(model.location()) << "the exporter's optimizer folded " << folded.size()
                                  << (folded.size() == 1 ? " parameter" : " parameters") << " into constants ("
                                  << listNames(folded)
                                  << "); they are trained as folded. Export with optimize=False to "
                                  << "keep every parameter";
  if (!foldedArithmetic.empty())
    emitWarning(model.location())
        << "the exporter's optimizer folded what is computed from parameters or buffers into constants, which are "
        << "not trained: " << listNames(foldedArithmetic) << ". Export with optimize=False to train them";
  if (!unmergedNames.empty())
    emitWarning(model.location()) << "the exporter's optimizer merged parameters of equal value; "
                                  << listNames(unmergedNames) << (unmergedNames.size() == 1 ? " was" : " were")
                                  << " separated again. Export with optimize=False to avoid this";
  if (!removedInNodes.empty())
    emitWarning(model.location()) << "the exporter's optimizer removed " << removedInNodes.size()
                                  << (removedInNodes.size() == 1 ? " parameter" : " parameters") << " from the graph ("
                                  << listNames(removedInNodes) << "), which are not trained as in PyTorch. Export with "
                                  << "optimize=False to train them";
  if (!unreferenced.empty())
    emitWarning(model.location()) << unreferenced.size()
                                  << (unreferenced.size() == 1 ? " parameter is" : " parameters are")
                                  << " not in the graph (" << listNames(unreferenced)
                                  << "). The exporter's optimizer removed or merged operations ("
                                  << listNames(removedFxValues(model, nodes))
                                  << "): if these used the parameters, and not as other names of tied tensors, the "
                                  << "parameters are not trained. Export with optimize=False to be sure";
  if (!norms.empty())
    emitWarning(model.location()) << "the exporter folded BatchNormalization into the weights before it ("
                                  << listNames(norms)
                                  << "): its scale, bias and statistics are gone, and what was folded "
                                  << "is trained instead. Export with optimize=False, or, with dynamo=False, with "
                                  << "training=torch.onnx.TrainingMode.TRAINING and do_constant_folding=False";
  return applyPatterns(model, options);
}

// PyTorch's optimizer leaves the name of the weight, drops its metadata, and gives the product the norm's own.
bool Parameters::isFoldedNorm(const onnx::TensorProto& tensor) const {
  auto it = uses.find(tensor.name());
  return it != uses.end() && llvm::any_of(it->second, [](const Use& use) {
           StringRef op = use.node->op_type();
           return use.operand > 0 && (op == "Conv" || op == "ConvTranspose" || op == "Gemm" || op == "MatMul") &&
                  expressionOf(*use.node).contains("batch_norm");
         });
}

// Running statistics are state whatever their metadata say.
void Parameters::findStatistics() {
  for (auto& entry : uses)
    if (llvm::all_of(entry.second,
                     [](const Use& use) { return use.node->op_type() == "BatchNormalization" && use.operand >= 3; }))
      markRunningStatistics(roles[entry.first()]);
}

// Makes constants of what operators take as settings, also if the metadata call it a parameter. Then finds parameters
// that are used in the place of no weight and are not named like one, where the file does not say what they are.
void Parameters::findSettings(const Model& model, ArrayRef<const onnx::NodeProto*> nodes, bool signature) {
  const bool byPyTorch = model.proto().producer_name() == "pytorch";
  const ValueUses valueUses(model, nodes);
  for (const onnx::TensorProto& tensor : model.graph().initializer()) {
    ParameterRole& role = roles[tensor.name()];
    if (!role.parameter || role.reason == kStatistics) continue;
    const int64_t dimensions = llvm::count_if(tensor.dims(), [](int64_t size) { return size != 1; });
    const ValueUses::Summary used = valueUses.summary(tensor.name(), dimensions);
    // PyTorch's exports have numbers in Constant nodes: a limit that has a member's name is one of the module.
    const bool learnsBound = signature || (byPyTorch && namesMember(tensor.name(), byPyTorch));
    const onnx::NodeProto* taker = used.setting ? used.setting : learnsBound ? nullptr : used.bound;
    if (taker && !used.weight && !used.value) {
      owner.erase(role.name);
      role.parameter = role.trainable = false;
      role.reason = "a setting of " + taker->op_type();
      continue;
    }
    if (!signature && !model.artifacts() && role.trainable && !used.weight && !namesWeight(role.name))
      role.mayBeBuffer = true;
  }
}

// A constant folded from exactly one parameter is that parameter, perhaps transposed or with a leading dimension of 1,
// or rows of it. Whatever else was computed of parameters is lost to training.
bool Parameters::isFoldedParameter(const Model& model, const onnx::TensorProto& tensor, ParameterRole& role) {
  SmallVector<StringRef> sources = pythonList(model.valueMetadata(tensor.name(), kFoldedFrom));
  ArrayRef<Use> users = uses[tensor.name()];
  SmallVector<StringRef> names;
  // A member of the outermost module has no dot, nor have values of the graph: these come with the constants that they
  // are computed from.
  SmallVector<StringRef> plain;
  for (StringRef source : sources)
    if (!isExportersConstant(source) && !isFactoryResult(source) && !namesView(source, false)) plain.push_back(source);
  auto isMember = [&](StringRef source) {
    return source.contains('.') || (plain.size() == 1 && source == plain.front());
  };
  const bool view = namesView(tensor.name(), false) &&
                    llvm::all_of(sources, [&](StringRef s) { return isMember(s) || namesView(s, true); });
  bool certain = true;
  for (StringRef source : sources) {
    if (!isMember(source)) continue;
    bool evident = llvm::any_of(users, [&](const Use& use) { return mentions(*use.node, 'p', source); });
    bool buffer = llvm::any_of(users, [&](const Use& use) { return mentions(*use.node, 'b', source); });
    if (!evident && (buffer || namesBuffer(source))) continue;
    names.push_back(source);
    // A name without a dot may be that of any value: another initializer, or the expression of a user, must have it.
    certain &= evident || owner.contains(source) || (source.contains('.') && (view || endsLikeParameter(source)));
  }
  if (names.empty() || users.empty()) return false;
  certain &= !namesArithmetic(tensor.name());
  const ParameterRole constant = role;
  auto isLost = [&] {
    foldedArithmetic.push_back((names.front() + "' in '" + tensor.name()).str());
    role = constant;
    role.reason = "computed from '" + names.front().str() + "' by the exporter's optimizer";
    return false;
  };
  // What several folded nodes made of a matrix is known only for the rows of an embedding, by the name of its value.
  const bool alone = sources.size() == 1, lookUp = !alone && StringRef(tensor.name()).starts_with("embedding");
  const bool vector = llvm::count_if(role.shape, [](int64_t size) { return size != 1; }) <= 1;
  if (names.size() != 1 || !certain || role.shape.empty() || (!alone && !lookUp && !vector && !view)) return isLost();
  StringRef name = names.front();
  role.parameter = role.trainable = true;
  role.name = name.str();
  role.reason = "folded into '" + tensor.name() + "'";

  // Rows for a batch of one.
  if (!alone)
    while (role.shape.size() > 2 && role.shape.front() == 1) role.shape.erase(role.shape.begin());
  if (lookUp) role.reason += ", the rows that the model uses";
  if (lookUp && !findRows(model, tensor, role)) return isLost();

  // The only unary fold that can be recognised at a matrix product's right side is a transposed Linear weight.
  bool product =
      alone && role.shape.size() == 2 && !users.empty() && llvm::all_of(users, [&](const Use& use) {
        StringRef op = use.node->op_type(), expression = expressionOf(*use.node);
        bool plain = llvm::all_of(use.node->attribute(), [](auto& a) { return a.name() != "transB" || a.i() == 0; });
        // aten.mm and aten.matmul take their operand as it is: what was folded was not a transposition.
        bool asIs =
            mentions(*use.node, 'p', name) && !expression.contains("aten.linear") && !expression.contains("aten.t.");
        return use.operand == 1 && plain && !asIs && (op == "MatMul" || op == "Gemm");
      });
  if (product) role.permutation = SmallVector<int64_t>{1, 0};

  auto [it, fresh] = owner.try_emplace(role.name, tensor.name());
  if (!fresh && role.holder) {
    role.reason = "tied again: rows folded into '" + tensor.name() + "'";
  } else if (!fresh) {
    // Its original is still there: a tie that folding broke.
    const ParameterRole& original = roles[it->second];
    role.viewTransposed = product && !original.permutation;
    SmallVector<int64_t> shape = role.shape;
    if (role.viewTransposed) std::swap(shape[0], shape[1]);
    role.permutation = original.permutation;
    if (shape != original.shape) return isLost();
    role.shape = shape;
    role.reason = "tied again: folded into '" + tensor.name() + "'";
  }
  folded.push_back(role.name);
  return true;
}

// Which row of the parameter each row of a folded look-up is. Equal rows are one row, looked up several times: rows of
// random weights differ, while rows of zeros may merely start equal. Where the table itself, or an earlier look-up in
// it, is there, its rows are looked for.
bool Parameters::findRows(const Model& model, const onnx::TensorProto& tensor, ParameterRole& role) const {
  auto held = owner.find(role.name);
  const onnx::TensorProto* holder = held == owner.end() ? nullptr : tensors.lookup(held->second);
  const Expected<StringRef> bytes = model.bytes(tensor);
  // Without their bytes (a graph alone), rows are taken to differ.
  if (!bytes.ok() || bytes->empty() || role.shape.size() < 2) return !holder && role.shape.size() >= 2;
  const int64_t columns = role.shape.back();
  int64_t count = 1;
  for (int64_t size : ArrayRef<int64_t>(role.shape).drop_back()) count *= size;
  if (count == 0 || columns == 0) return false;
  const size_t size = bytes->size() / count;
  llvm::DenseMap<StringRef, int64_t> known;
  if (holder) {
    const ParameterRole& original = roles.find(held->second)->second;
    const Expected<StringRef> table = model.bytes(*holder);
    if (!table.ok() || table->empty() || original.rows || original.permutation || original.shape.size() != 2 ||
        original.shape[1] != columns || holder->data_type() != tensor.data_type())
      return false;
    for (int64_t i = 0; i < original.shape[0]; ++i) known.try_emplace(table->substr(i * size, size), i);
    role.shape = original.shape;
  }
  SmallVector<int64_t> rows;
  for (int64_t i = 0; i < count; ++i) {
    auto [it, fresh] = known.try_emplace(bytes->substr(i * size, size), int64_t(known.size()));
    StringRef row = it->first;
    if (fresh ? bool(holder) : row.drop_front(size / columns) == row.drop_back(size / columns)) return false;
    rows.push_back(it->second);
  }
  role.holder = holder;
  if (!holder) role.shape = {int64_t(known.size()), columns};
  if (holder || int64_t(known.size()) < count) role.rows = std::move(rows);
  return true;
}

// A matrix that several modules use is tied. Exports have one of its names, files of weights perhaps another: that of
// each module's own.
void Parameters::nameTied() {
  llvm::StringMap<std::vector<std::string>> modules;  // by parameter
  for (const auto& entry : uses) {
    const ParameterRole& role = roles[entry.first()];
    if (!role.parameter || role.shape.size() < 2) continue;
    std::vector<std::string>& users = modules[role.name];
    for (const Use& use : entry.second) {
      std::string module = moduleOf(*use.node).str();
      if (module.empty()) module = moduleByName(*use.node);
      if (!module.empty() && !llvm::is_contained(users, module)) users.push_back(std::move(module));
    }
  }
  for (auto& entry : roles) {
    ParameterRole& role = entry.second;
    auto users = modules.find(role.name);
    if (!role.parameter || users == modules.end() || users->second.size() < 2) continue;
    const StringRef leaf = StringRef(role.name).rsplit('.').second;
    for (const std::string& module : users->second)
      if (std::string name = module + "." + leaf.str(); !leaf.empty() && !owner.contains(name) && !roles.contains(name))
        role.aliases.push_back(std::move(name));
    llvm::sort(role.aliases);
  }
}

LogicalResult Parameters::applyPatterns(const Model& model, const ImportOptions& options) {
  auto compile = [&](const std::vector<std::string>& patterns, std::vector<llvm::Regex>& out) {
    for (const std::string& pattern : patterns) {
      std::string problem;
      if (!out.emplace_back(pattern).isValid(problem))
        return emitError(model.location()) << "'" << pattern << "' is not a regular expression: " << problem, failure();
    }
    return success();
  };
  std::vector<llvm::Regex> train, freeze;
  if (failed(compile(options.train, train)) || failed(compile(options.freeze, freeze))) return failure();
  std::vector<bool> used(train.size() + freeze.size());
  auto matches = [&](std::vector<llvm::Regex>& patterns, StringRef name, size_t base) {
    bool any = false;
    for (auto [i, pattern] : llvm::enumerate(patterns))
      if (pattern.match(name)) any = used[base + i] = true;
    return any;
  };
  auto apply = [&](ParameterRole& role) {
    if (role.reason == "integers") return;
    if (role.reason == kStatistics) {  // known by name, but never trained
      matches(train, role.name, 0);
      matches(freeze, role.name, train.size());
      return;
    }
    if (!train.empty()) {
      bool chosen = matches(train, role.name, 0);
      role.mayBeBuffer &= !chosen;
      if (!chosen && role.trainable) role.reason = kNotNamedByTrain;
      role.trainable = chosen;
      role.parameter |= chosen;
    }
    if (matches(freeze, role.name, train.size()) && role.parameter) {
      role.trainable = false;
      role.reason = kNamedByFreeze;
    }
  };
  for (auto& entry : roles) {
    apply(entry.second);
    if (entry.second.mayBeBuffer) mayBeBufferNames.insert(entry.second.name);
  }
  for (auto& entry : unmerged) apply(entry.second);
  for (auto [i, hit] : llvm::enumerate(used))
    if (!hit)
      return emitError(model.location()) << (i < train.size() ? "--train '" : "--freeze '")
                                         << (i < train.size() ? options.train[i] : options.freeze[i - train.size()])
                                         << "' matches no parameter"
                                         << suggestionFor(i < train.size() ? options.train[i]
                                                                           : options.freeze[i - train.size()]);
  return success();
}

// The names of parameters, for the error of an expression that matches none.
std::string Parameters::suggestionFor(const std::string& text) const {
  std::set<std::string> distinct;
  for (const auto& entry : roles)
    if (entry.second.parameter) distinct.insert(entry.second.name);
  if (distinct.empty()) return "";
  std::vector<std::string> names(distinct.begin(), distinct.end()), parts = names;
  // A module's name or a part of it is an expression, too.
  for (const std::string& name : names) {
    SmallVector<StringRef> words;
    StringRef(name).split(words, '.');
    for (StringRef word : words) parts.push_back(word.str());
  }
  return cat("; the parameters are ", listText(names), didYouMean(parts, text));
}

const ParameterRole& Parameters::role(const onnx::TensorProto& tensor, const onnx::NodeProto* user, int operand) const {
  if (auto it = unmerged.find({user, operand}); user && it != unmerged.end()) return it->second;
  static const ParameterRole constant;  // an initializer of the training algorithm
  auto it = roles.find(tensor.name());
  return it == roles.end() ? constant : it->second;
}

bool Parameters::isOfModule(const Model& model, const onnx::TensorProto& tensor, bool used) const {
  const ParameterRole& known = role(tensor, nullptr, -1);
  // These are views of a parameter that another initializer holds.
  if (known.holder || known.viewTransposed) return false;
  const StringRef kind = model.valueMetadata(tensor.name(), kSignatureKind);
  if (kind == "PARAMETER") return true;
  if (kind == "BUFFER") return model.valueMetadata(tensor.name(), kPersistent) == "True";
  return known.parameter || (!used && kind.empty() && StringRef(tensor.name()).find_first_of(":/") == StringRef::npos);
}

void Parameters::trainOnly(ArrayRef<std::string> names) {
  mayBeBufferNames.clear();
  for (auto& entry : roles) {
    bool chosen = llvm::is_contained(names, entry.first());
    if (!chosen && entry.second.trainable) entry.second.reason = "not among the Gradient operator's xs";
    entry.second.trainable = chosen;
    entry.second.parameter |= chosen;
  }
}

}  // namespace sheaf::frontend
