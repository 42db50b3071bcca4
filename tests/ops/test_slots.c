/* States of slots: copies, so results are exact. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "ops/slots/slots.h"
#include "support/check.h"

enum { ROWS = 2, SLOTS = 5, SEQUENCES = 3 };
static const int32_t first_slots[SEQUENCES] = {4, 0, 2}, second_slots[SEQUENCES] = {2, 4, 0};

typedef struct Written {
    int64_t length, columns;
    int32_t lasts[SEQUENCES];
} Written;

static TensorId slots_of(Check *check, const int32_t *slots) { return check_integers(check, 1, (int64_t[]){SEQUENCES}, slots); }

/* Writes the states of three slots twice, with other rows in use, and reads them in another order. */
static void build_states(Check *check, const void *argument) {
    const Written *w = argument;
    TensorId state = graph_tensor(check->graph, ARENA_STATE, TYPE_COMPUTE, 2, (int64_t[]){SLOTS * ROWS, w->columns}, "state");
    static const int32_t all[SEQUENCES] = {0};
    TensorId history = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){SEQUENCES * ROWS, w->columns}, 0, 1);
    for (int i = 0; i < 2; i++) {
        TensorId x = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){SEQUENCES * w->length, w->columns}, 0, 1);
        op_slot_write(check->graph, state, slots_of(check, first_slots),
            check_integers(check, 1, (int64_t[]){SEQUENCES}, i ? w->lasts : all), history, x);
        history = op_slot_read(check->graph, state, slots_of(check, i ? second_slots : first_slots), ROWS);
    }
    check_output(check, history);
}

static void states_are_the_last_rows_in_use(void **state) {
    (void)state;
    static const Written cases[] = {{1, 8, {0, 0, 0}}, {5, 264, {0, 1, 4}}, {2, 3, {1, 0, 1}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_op(build_states, &cases[i], (CheckBounds){.forward_only = true, .bf16 = 1e-9}); /* inputs are exact in bf16 */
}

static void history_precedes_the_rows_of_a_sequence(void **state) {
    (void)state;
    static const struct { int64_t last, expected[ROWS]; } cases[] = {{0, {-1, 0}}, {1, {0, 1}}, {7, {6, 7}}};
    for (int i = 0; i < 3; i++)
        for (int64_t row = 0; row < ROWS; row++) assert_int_equal(slot_source(row, ROWS, cases[i].last), cases[i].expected[row]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_are_the_last_rows_in_use),
        cmocka_unit_test(history_precedes_the_rows_of_a_sequence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
