// The statements of a plan's text, as one table that the printer, the parser and the reference page follow.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/Plan/TextFormat.h"

namespace sheaf::plan_ir::text {

// A statement. A new field of plan.proto gets its place in the format of a row: of kDeclarations, kInstructions or
// kSubMessages in TextRows.cpp.
struct Row {
  std::string_view statement;
  // A declaration has one of these:
  //   NAME*       one statement for each entry of the plan's list NAME; the entry is the format's message
  //   NAME        one statement if this field of the plan is set; the plan is the format's message
  //   (empty)     always one statement; the plan is the format's message
  //   digests.?   one statement for each table of digests; its name replaces `?` in the format, too
  // An instruction has its field of the oneof `kind` here, and a collective `=` and its operation after it.
  std::string_view where;
  std::string_view format;  // see TextFormat.h
  std::string_view block;   // the list of instructions that follows in braces; empty: none
  std::string_view meaning;
};

// A message within a statement. Where its format is `KEY = VALUE`, a list of these is a dictionary.
struct SubMessage {
  std::string_view message;
  std::string_view format;
};

extern const Row kProgram;
std::span<const Row> declarationRows();
std::span<const Row> instructionRows();
std::span<const SubMessage> subMessageRows();

// A row, compiled. Members that the row does not have are null or empty.
struct Statement {
  const Row* row;
  std::string name;               // "plan.buffer"
  const FieldDescriptor* list;    // each of its entries has a statement
  Path where;                     // the statement stands where this is set
  std::vector<Element> elements;  // in terms of the entry, the plan or the instruction
  Path block;                     // the list of instructions in braces
  const FieldDescriptor* kind;    // an instruction has this field in its oneof
  Path operation;                 // the field that tells collectives apart
  int operationValue;             // and its value here
};

// All rows, compiled.
struct Table {
  Statement program;
  std::vector<Statement> declarations, instructions;
  std::map<const Descriptor*, std::vector<Element>> parts;
};
const Table& table();

// Returns the statement of an instruction; null if it has no kind.
const Statement* statementOf(const Message& instruction);

// Returns the format `KEY = VALUE` of a list's messages, if the text has the list as a dictionary; else null.
const std::vector<Element>* mapEntryOf(const FieldDescriptor* list);

// Return null if nothing has this name.
const Spelling* findSpelling(std::string_view name);
const TextForm* findTextForm(std::string_view name);

// Returns an enumerator's name in lower case: empty if it is unspecified or not known.
std::string wordOf(const google::protobuf::EnumDescriptor& enumeration, int value);

}  // namespace sheaf::plan_ir::text
