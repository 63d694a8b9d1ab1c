// Counts connections that did not belong to the job, by where they came from.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace sheaf::comm {

class OtherConnections {
 public:
  void add(const std::string& name);
  // "; 3 connections of others: from 10.0.0.7 (3)"; empty if there were none.
  std::string text() const;

 private:
  uint64_t count_ = 0;
  std::map<std::string, uint64_t> names_;
};

}  // namespace sheaf::comm
