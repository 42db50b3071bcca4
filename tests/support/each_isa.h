/* A case declares itself in the table of its program, EACH_ISA(TRAIN_TEST(case)), if its result might depend on the CPU's instruction
 * set: it compares the bits of two ways to compute (a layout, recomputation, threads, the order of updates), or counts on the course
 * of a loss. `make test` runs these cases again under each instruction set of the CPU. Cases that compare a computation with its
 * repetition (a resumed run), or values within a tolerance for rounding, need no declaration; nor do operations, which check_op runs
 * under each set itself. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define EACH_ISA(...) each_isa((struct CMUnitTest)__VA_ARGS__)

/* The row with ", each instruction set" at the end of its name, by which SMELT_TEST_CASES chooses it. */
struct CMUnitTest each_isa(struct CMUnitTest row);
