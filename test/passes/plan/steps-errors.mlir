// sheaf-opt refuses what it cannot do with the text of a plan, rather than leave it out in silence.
// RUN: not sheaf-opt %s -canonicalize 2>&1 | FileCheck %s --check-prefix=PASS
// RUN: not sheaf-opt %s --pass-pipeline='builtin.module(cse)' 2>&1 | FileCheck %s --check-prefix=PIPELINE
// RUN: not sheaf-opt %s --verify-diagnostics 2>&1 | FileCheck %s --check-prefix=DIAGNOSTICS
// RUN: not sheaf-opt %s -plan-lower 2>&1 | FileCheck %s --check-prefix=LOWER
// RUN: not sheaf-opt %s -plan-elide-events -cse 2>&1 | FileCheck %s --check-prefix=ORDER
// PASS: is the text of a plan; -canonicalize is a pass on modules
// PIPELINE: is the text of a plan; -pass-pipeline is a pass on modules
// DIAGNOSTICS: is the text of a plan; --verify-diagnostics checks modules
// LOWER: is the text of a plan; -plan-lower takes a module
// ORDER: -cse is a pass on modules: it stands before -plan-lower

// Options of steps have ranges.
// RUN: not sheaf-opt %s -plan-generations=generations=7 2>&1 | FileCheck %s --check-prefix=MOST
// RUN: not sheaf-opt %s -plan-schedule=memory-limit=-5 2>&1 | FileCheck %s --check-prefix=LEAST
// RUN: not sheaf-opt %s -plan-insert-events=placed=1 2>&1 | FileCheck %s --check-prefix=FLAG
// RUN: not sheaf-opt %s -plan-schedule=prefetch=most 2>&1 | FileCheck %s --check-prefix=NUMBER
// RUN: not sheaf-opt %s -plan-schedule=lookahead=1 2>&1 | FileCheck %s --check-prefix=NAME
// MOST: -plan-generations: generations=7: expected at most 2
// LEAST: -plan-schedule: memory-limit=-5: expected at least 0
// FLAG: -plan-insert-events: placed=1: expected true or false
// NUMBER: -plan-schedule: prefetch=most: expected a whole number
// NAME: -plan-schedule has no option 'lookahead'; --plan-steps lists the options

// A plan's text may begin anywhere, and needs no line of its own.
// RUN: sheaf-opt %s -plan-elide-events | FileCheck %s --check-prefix=PLAN
// PLAN: plan.program
module { plan.program attributes {ranks = 1} { plan.body {} } }
