/* Collectives of RCCL or NCCL in a recorded graph, with all cards that this process can open (at most 8), or with one: the calls of
 * comm/nccl_calls_internal.h on the devices' own streams. smelt itself records only its own collectives
 * (src/backend/gpu/words.h); this shows whether a driver and a library could record theirs. Skipped without
 * SMELT_TEST_DEVICE, and without the library. */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/gpu/driver.h"
#include "base/library.h"
#include "comm/nccl_calls_internal.h"
#include "support/check.h"

enum { MOST_CARDS = 8, COUNT = 1 << 16, REPLAYS = 3, F32 = 7, SUM = 0 };

typedef struct NcclApi { NCCL_CALLS(LIBRARY_FIELD) } NcclApi;
typedef struct Card {
    Device *device;
    void *group;
    float *send, *receive; /* device memory, COUNT elements */
    DeviceRecording *recording;
} Card;

static NcclApi nccl;
static Card cards[MOST_CARDS];
static int card_count;

static bool open_library(const char *file) {
    static const char *const names[] = {NCCL_CALLS(LIBRARY_NAME)};
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    return library && !library_find(library, names, &nccl);
}

static void open_cards(void) {
    Error error = {0};
    cards[card_count++].device = check_device();
    DeviceKind kind = device_info(check_device())->kind;
    while (card_count < MOST_CARDS && !getenv("ROCEMU_LIBRARY") && (cards[card_count].device = device_open(kind, card_count, &error)))
        card_count++;
}

static void succeed(int result) {
    if (result) fail_msg("the library of collectives returned %d; NCCL_DEBUG=INFO says more", result);
}

/* One thread has all ranks, so each call is made for all cards between begin and end. */
static void join_cards(void) {
    NcclId id;
    succeed(nccl.make_id(&id));
    succeed(nccl.begin());
    for (int i = 0; i < card_count; i++) {
        driver_use_in_thread(gpu_of(cards[i].device));
        succeed(nccl.join(&cards[i].group, card_count, id, i));
    }
    succeed(nccl.end());
}

static void reduce_on_all(void) {
    succeed(nccl.begin());
    for (int i = 0; i < card_count; i++) {
        driver_use_in_thread(gpu_of(cards[i].device));
        succeed(nccl.all_reduce(cards[i].send, cards[i].receive, COUNT, F32, SUM, cards[i].group, gpu_of(cards[i].device)->stream));
    }
    succeed(nccl.end());
}

/* Integers, whose sums are exact. */
static float value_of(int card, int round, int64_t index) { return (float)((index * 7 + card * 1000 + round * 31) % 4093); }

static void fill_cards(int round) {
    float *values = malloc(COUNT * sizeof *values);
    for (int i = 0; i < card_count; i++) {
        driver_use_in_thread(gpu_of(cards[i].device));
        for (int64_t j = 0; j < COUNT; j++) values[j] = value_of(i, round, j);
        device_upload(cards[i].device, cards[i].send, values, COUNT * sizeof *values);
        device_fill(cards[i].device, cards[i].receive, 0xff, COUNT * sizeof *values);
    }
    free(values);
}

static void check_sums(int round) {
    float *values = malloc(COUNT * sizeof *values);
    Error error = {0};
    for (int i = 0; i < card_count; i++) {
        driver_use_in_thread(gpu_of(cards[i].device));
        device_download(cards[i].device, values, cards[i].receive, COUNT * sizeof *values);
        if (!device_ok(cards[i].device, &error)) fail_msg("card %d: %s", i, error.message);
        for (int64_t j = 0; j < COUNT; j++) {
            float sum = 0;
            for (int k = 0; k < card_count; k++) sum += value_of(k, round, j);
            if (values[j] != sum) fail_msg("card %d, replay %d, element %lld: %g instead of %g", i, round, (long long)j, values[j], sum);
        }
    }
    free(values);
}

static void record_on_all(void) {
    for (int i = 0; i < card_count; i++) {
        driver_use_in_thread(gpu_of(cards[i].device));
        if (!device_record_begin(cards[i].device)) fail_msg("card %d does not record", i);
    }
    reduce_on_all();
    for (int i = 0; i < card_count; i++) {
        Error error = {0};
        driver_use_in_thread(gpu_of(cards[i].device));
        cards[i].recording = device_record_end(cards[i].device);
        if (!device_ok(cards[i].device, &error)) fail_msg("card %d: %s", i, error.message);
    }
}

static void replays_of_recorded_collectives_have_the_sums(void **state) {
    (void)state;
    Error error = {0};
    if (!open_library(device_info(check_gpu())->collectives_file)) {
        print_message("skipped: %s was not found\n", device_info(check_device())->collectives_file);
        skip();
    }
    open_cards();
    for (int i = 0; i < card_count; i++) {
        driver_use_in_thread(gpu_of(cards[i].device));
        cards[i].send = device_allocate(cards[i].device, COUNT * sizeof(float), &error);
        cards[i].receive = device_allocate(cards[i].device, COUNT * sizeof(float), &error);
        assert_non_null(cards[i].receive);
    }
    join_cards();
    fill_cards(0);
    reduce_on_all(); /* opens connections, which a capture forbids */
    check_sums(0);
    record_on_all();
    for (int round = 1; round <= REPLAYS; round++) {
        fill_cards(round);
        for (int i = 0; i < card_count; i++) {
            driver_use_in_thread(gpu_of(cards[i].device));
            device_replay(cards[i].device, cards[i].recording);
        }
        check_sums(round);
    }
    print_message("%d replays of an all-reduce over %d card%s\n", REPLAYS, card_count, card_count == 1 ? "" : "s");
    for (int i = 0; i < card_count; i++) {
        driver_use_in_thread(gpu_of(cards[i].device));
        device_recording_free(cards[i].device, cards[i].recording);
        succeed(nccl.leave(cards[i].group));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(replays_of_recorded_collectives_have_the_sums)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
