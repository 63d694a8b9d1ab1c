// One error, which says what is accepted instead.
// RUN: not sheaf-opt %s -train-add-optimizer=optimizer=adamq 2>&1 | FileCheck %s --check-prefix=NAME
// RUN: not sheaf-opt %s -train-add-optimizer=optimizer=sgd:speed=3 2>&1 | FileCheck %s --check-prefix=KEY
// RUN: not sheaf-opt %s -train-add-optimizer=optimizer=sgd:lr=-1 2>&1 | FileCheck %s --check-prefix=NEGATIVE
// RUN: not sheaf-opt %s -train-add-optimizer=optimizer=adamw:lr=nan 2>&1 | FileCheck %s --check-prefix=NAN
// RUN: not sheaf-opt %s -train-add-optimizer=optimizer=adamw:beta1=1 2>&1 | FileCheck %s --check-prefix=BETA
// RUN: not sheaf-opt %s -train-add-optimizer=optimizer=adam:lr 2>&1 | FileCheck %s --check-prefix=EMPTY
// RUN: not sheaf-opt %s -train-add-optimizer=optimizer=adamw:lr=1e39 2>&1 | FileCheck %s --check-prefix=LARGE
// RUN: not sheaf-opt %s -train-add-optimizer=optimizer=adamw:eps=1e-50 2>&1 | FileCheck %s --check-prefix=SMALL
// RUN: not sheaf-opt %s -train-add-optimizer=optimizer=adam:lr=1,lr=2 2>&1 | FileCheck %s --check-prefix=TWICE
// RUN: not sheaf-opt %s -train-add-optimizer=optimizer=sgd:nesterov=2 2>&1 | FileCheck %s --check-prefix=BOOL
// RUN: not sheaf-opt %s -train-add-optimizer=optimizer=sgd:nesterov=true 2>&1 | FileCheck %s --check-prefix=NESTEROV

// NAME: error: unknown optimizer 'adamq': take one of sgd, adam, adamw, adamw_hf, lion
// KEY: error: optimizer sgd has no 'speed': it takes lr, momentum, nesterov, weight_decay, dampening
// NEGATIVE: error: optimizer sgd: 'lr' is '-1', not a number of at least 0
// NAN: error: optimizer adamw: 'lr' is 'nan', not a number of at least 0
// BETA: error: optimizer adamw: 'beta1' is '1', not a number of at least 0 and less than 1
// EMPTY: error: optimizer adam: 'lr' is '', not a number of at least 0
// LARGE: error: optimizer adamw: 'lr' is '1e39', which is beyond the largest number of f32, 3.4e38
// SMALL: error: optimizer adamw: 'eps' is '1e-50', which is 0 in f32, whose least positive number is 1.4e-45
// TWICE: error: optimizer adam: 'lr' is given twice
// BOOL: error: optimizer sgd: 'nesterov' is '2', not true or false
// NESTEROV: error: optimizer sgd: nesterov needs a momentum greater than 0 and no dampening
module {
}
