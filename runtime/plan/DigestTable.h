// The tables of a plan that carry digests.
#pragma once

#include <string_view>

#include "runtime/plan/plan.pb.h"

namespace sheaf::plan {

// The list of a table's digests in the message Digests.
struct DigestTable {
  using List = google::protobuf::RepeatedField<uint64_t>;
  const char* name;  // "parameters"
  const List& (Digests::*get)() const;
  List* (Digests::*edit)();
};

// All tables, in the order in which they are checked: `training`, `floor` and `origin` have one entry, `kernel_entries`
// one for each image and kernel, `dataflow` those of Dataflow.h, the others one for each entry of the plan's table of
// that name. A digest covers the whole entry but for what does not change results: the learning rate, its schedule, the
// toolkit of an image, and which buffer holds a state or constant (`dataflow` covers that it is the right one).
inline constexpr DigestTable kDigestTables[] = {
    {"training", &Digests::training, &Digests::mutable_training},
    {"scalars", &Digests::scalars, &Digests::mutable_scalars},
    {"inputs", &Digests::inputs, &Digests::mutable_inputs},
    {"files", &Digests::files, &Digests::mutable_files},
    {"buckets", &Digests::buckets, &Digests::mutable_buckets},
    {"parameters", &Digests::parameters, &Digests::mutable_parameters},
    {"constants", &Digests::constants, &Digests::mutable_constants},
    {"kernels", &Digests::kernels, &Digests::mutable_kernels},
    {"kernel_entries", &Digests::kernel_entries, &Digests::mutable_kernel_entries},
    {"images", &Digests::images, &Digests::mutable_images},
    {"floor", &Digests::floor, &Digests::mutable_floor},
    {"outputs", &Digests::outputs, &Digests::mutable_outputs},
    {"origin", &Digests::origin, &Digests::mutable_origin},
    {"dataflow", &Digests::dataflow, &Digests::mutable_dataflow},
};

// The table of that name; null if there is none.
inline const DigestTable* findDigestTable(std::string_view name) {
  for (const DigestTable& table : kDigestTables)
    if (table.name == name) return &table;
  return nullptr;
}

}  // namespace sheaf::plan
