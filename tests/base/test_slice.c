/* Tests of slices against lists of their elements: every function, for random slices of small tensors. Owns nothing
 * beyond a test; run by `make test`. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "base/slice.h"

enum { ELEMENTS = 120, ROUNDS = 20000 };

/* The elements of a slice one after another. */
typedef struct List { int64_t count, elements[ELEMENTS]; } List;

static uint64_t draws;
static int64_t below(int64_t limit) { return (int64_t)(rng_uniform(1, 2, draws++) * (double)limit); }

/* A part of a random matrix's columns: the slice from the formula, the list from two loops. */
static Slice draw(List *list) {
    int64_t stride = 1 + below(12), rows = 1 + below(ELEMENTS / stride), run = 1 + below(stride), begin = below(stride - run + 1);
    int64_t all = rows * run, from = below(all), count = below(all - from + 1), number = 0;
    list->count = 0;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t column = begin; column < begin + run; column++, number++)
            if (number >= from && number < from + count) list->elements[list->count++] = row * stride + column;
    Slice columns = {.first = begin, .count = all, .run = run, .stride = stride};
    return slice_part(&columns, from, count);
}

static bool has(const List *list, int64_t element, int64_t *number) {
    for (*number = 0; *number < list->count; ++*number)
        if (list->elements[*number] == element) return true;
    return false;
}

static void numbers_and_elements_match(void **state) {
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        List list;
        Slice slice = draw(&list);
        assert_int_equal(slice.count, list.count);
        assert_true(slice_is_valid(&slice, ELEMENTS));
        for (int64_t element = 0, number = 0; element < ELEMENTS; element++) {
            assert_int_equal(slice_below(&slice, element), number);
            if (number < list.count && list.elements[number] == element) assert_int_equal(slice_at(&slice, number++), element);
        }
        for (int64_t number = 0; number < list.count; number++) {
            int64_t follow = 1;
            while (number + follow < list.count && list.elements[number + follow] == list.elements[number] + follow) follow++;
            assert_int_equal(slice_follow(&slice, number), follow);
        }
    }
}

static void parts_have_one_form(void **state) {
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        List list;
        Slice slice = draw(&list);
        int64_t from = below(list.count + 1), count = below(list.count - from + 1), middle = below(count + 1);
        Slice part = slice_part(&slice, from, count), direct = slice_part(&slice, from + middle, count - middle);
        Slice twice = slice_part(&part, middle, count - middle);
        if (direct.count > 0) assert_true(slice_equal(&direct, &twice));
        for (int64_t number = 0; number < count; number++) assert_int_equal(slice_at(&part, number), list.elements[from + number]);
        if (count > 0 && list.elements[from + count - 1] == list.elements[from] + count - 1) assert_int_equal(part.run, 0);
    }
}

static void two_slices_copy_what_they_have_in_common(void **state) {
    (void)state;
    int64_t met = 0, within = 0;
    for (int round = 0; round < ROUNDS; round++) {
        List from, to;
        Slice source = draw(&from), target = draw(&to);
        uint16_t values[ELEMENTS], copied[ELEMENTS], expected[ELEMENTS];
        int64_t common = 0, number, start = -1;
        for (int i = 0; i < ELEMENTS; i++) values[i] = (uint16_t)(i + 1), copied[i] = expected[i] = 0;
        for (int64_t i = 0; i < from.count; i++) {
            if (!has(&to, from.elements[i], &number)) continue;
            expected[number] = values[i];
            if (i == 0) start = number;
            common++;
        }
        slice_copy(&target, copied, &source, values, sizeof *values);
        assert_memory_equal(copied, expected, sizeof copied);
        assert_int_equal(slices_meet(&source, &target), common > 0);
        assert_int_equal(slices_meet(&target, &source), common > 0);
        bool inside = from.count > 0 && start >= 0 && start + from.count <= to.count &&
                      memcmp(&to.elements[start < 0 ? 0 : start], from.elements, (size_t)from.count * sizeof(int64_t)) == 0;
        bool alike = source.run == 0 || (source.run == target.run && source.stride == target.stride);
        int64_t found = slice_within(&target, &source);
        if (from.count > 0 && (!inside || alike || found >= 0)) assert_int_equal(found, inside ? start : -1);
        met += common > 0;
        within += inside;
    }
    assert_true(met > ROUNDS / 10 && within > ROUNDS / 100);
}

static void what_has_another_form_or_lies_outside_is_refused(void **state) {
    (void)state;
    const int64_t huge = INT64_MAX;
    const Slice good[] = {{0, 10}, {10, 0}, {1, 9}, {.first = 1, .count = 4, .run = 2, .stride = 5}, {1, 3, 2, 8, 1}};
    const Slice bad[] = {{0, 11}, {11, 0}, {-1, 1}, {0, -1}, {2, 9}, {huge, huge}, {0, 4, 0, 4, 0}, {0, 4, 0, 0, 1}, {0, 4, 2, 2, 0},
        {0, 4, 2, 1, 0}, {0, 2, 2, 5, 0}, {0, 4, 2, 5, 2}, {0, 4, 2, 5, 1}, {3, 4, 2, 8, 0}, {1, 4, 1, huge, 0}, {1, huge, 2, 5, 0},
        {0, 3, -1, 5, 0}, {0, 3, 2, 5, -1}, {1, huge, huge - 1, huge, 0}, {0, 6, 2, 4, 1}, {1, 2, 1, 9, 0}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) assert_true(slice_is_valid(&good[i], 10));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (slice_is_valid(&bad[i], 10)) fail_msg("number %zu was taken", i);
    assert_true(slice_is_valid(&(Slice){0, 3, 2, huge - 1, 0}, huge)); /* its last element is the tensor's last */
    assert_false(slice_is_valid(&(Slice){0, 3, 2, huge - 1, 0}, huge - 1));
    assert_false(slice_is_valid(&(Slice){0, 4, 2, huge - 1, 0}, huge));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_and_elements_match),
        cmocka_unit_test(parts_have_one_form),
        cmocka_unit_test(two_slices_copy_what_they_have_in_common),
        cmocka_unit_test(what_has_another_form_or_lies_outside_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
