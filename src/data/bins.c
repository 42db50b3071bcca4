/* Best-fit packing: puts documents into bins of one sequence each, so that few documents are cut. A
 * document longer than a bin is cut into whole bins and a rest. WINDOW_PARTS consecutive parts of
 * the stream are packed together by best fit decreasing (Ding et al., "Fewer Truncations Improve
 * Language Modeling", 2024): from the longest part to the shortest, each goes into the fullest bin
 * that has room for it, or else into a new one. Memory is therefore constant, and the same corpus
 * and length give the same bytes.
 *
 * The plan is a mapped file: parts bin by bin, then the first part of each bin, then a BinFooter.
 * Training makes it in RUN/data; the loader reads it. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/file.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "data/bins.h"

enum { WINDOW_PARTS = 1 << 20, COPY_BYTES = 1 << 20 };
#define BINS_MAGIC "SMELTBN1"

/* The end of the file, aligned to 8 bytes. */
typedef struct BinFooter {
    char magic[8];
    int64_t length, bins, parts, inputs;
    uint64_t content;  /* shard_set_checksum */
    uint64_t checksum; /* XXH3 of all bytes before it */
} BinFooter;

/* -- One window ---------------------------------------------------------------------------------------------------- */

/* Open bins by their room: a stack for each room, and two levels of bits that mark the stacks that
 * are not empty. */
typedef struct Rooms {
    int32_t *top;            /* [length]: the bin on top of the stack; -1: empty */
    uint64_t *bits, *groups; /* [length / 64 + 1] a bit per room; [length / 4096 + 1] a bit per word of bits */
    int64_t words;
} Rooms;

typedef struct Window {
    int64_t length;
    BinPart *parts, *packed; /* [WINDOW_PARTS] in the order of the stream; bin by bin */
    int32_t *bin;            /* [WINDOW_PARTS]: the bin of each part */
    int32_t *below;          /* [WINDOW_PARTS]: the next bin on the stack below each bin */
    int64_t *room;           /* [WINDOW_PARTS]: the room of each bin */
    int64_t *first_part;     /* [WINDOW_PARTS + 1]: the first part of each bin, in `packed` */
    int64_t count, bins;
    Rooms rooms;
} Window;

static void push_bin(Window *window, int32_t bin) {
    Rooms *rooms = &window->rooms;
    int64_t room = window->room[bin];
    window->below[bin] = rooms->top[room];
    rooms->top[room] = bin;
    rooms->bits[room / 64] |= 1ull << room % 64;
    rooms->groups[room / 4096] |= 1ull << room / 64 % 64;
}

static int32_t pop_bin(Window *window, int64_t room) {
    Rooms *rooms = &window->rooms;
    int32_t bin = rooms->top[room];
    rooms->top[room] = window->below[bin];
    if (rooms->top[room] >= 0) return bin;
    rooms->bits[room / 64] &= ~(1ull << room % 64);
    if (!rooms->bits[room / 64]) rooms->groups[room / 4096] &= ~(1ull << room / 64 % 64);
    return bin;
}

/* Returns the first set bit from `from` on; -1: none in `words` words. */
static int64_t next_bit(const uint64_t *bits, int64_t words, int64_t from) {
    if (from / 64 >= words) return -1;
    uint64_t word = bits[from / 64] & ~0ull << from % 64;
    for (int64_t i = from / 64;; word = bits[i]) {
        if (word) return i * 64 + __builtin_ctzll(word);
        if (++i == words) return -1;
    }
}

/* Returns the smallest room of an open bin that is at least `needed`; -1: none. */
static int64_t best_room(const Rooms *rooms, int64_t needed) {
    uint64_t word = rooms->bits[needed / 64] & ~0ull << needed % 64;
    if (word) return needed / 64 * 64 + __builtin_ctzll(word);
    int64_t next = next_bit(rooms->groups, divide_up(rooms->words, 64), needed / 64 + 1);
    return next < 0 ? -1 : next * 64 + __builtin_ctzll(rooms->bits[next]);
}

static int longest_first(const void *a, const void *b) {
    const BinPart *x = a, *y = b;
    if (x->count != y->count) return x->count < y->count ? 1 : -1;
    return x->start < y->start ? -1 : x->start > y->start;
}

static void empty_rooms(Rooms *rooms, int64_t length) {
    memset(rooms->top, -1, (size_t)(length + 1) * sizeof *rooms->top);
    memset(rooms->bits, 0, (size_t)rooms->words * sizeof *rooms->bits);
    memset(rooms->groups, 0, (size_t)divide_up(rooms->words, 64) * sizeof *rooms->groups);
}

static void fit_parts(Window *window) {
    window->bins = 0;
    empty_rooms(&window->rooms, window->length);
    qsort(window->parts, (size_t)window->count, sizeof *window->parts, longest_first);
    for (int64_t i = 0; i < window->count; i++) {
        int64_t needed = window->parts[i].count, room = best_room(&window->rooms, needed);
        int32_t bin = room < 0 ? (int32_t)window->bins++ : pop_bin(window, room);
        window->bin[i] = bin;
        window->room[bin] = (room < 0 ? window->length : room) - needed;
        if (window->room[bin] > 0) push_bin(window, bin);
    }
}

/* Orders parts bin by bin, the longest of each bin first. */
static void order_parts(Window *window) {
    memset(window->first_part, 0, (size_t)(window->bins + 1) * sizeof *window->first_part);
    for (int64_t i = 0; i < window->count; i++) window->first_part[window->bin[i] + 1]++;
    for (int64_t b = 0; b < window->bins; b++) window->first_part[b + 1] += window->first_part[b];
    int64_t *next = window->room; /* the rooms are no longer needed */
    memcpy(next, window->first_part, (size_t)window->bins * sizeof *next);
    for (int64_t i = 0; i < window->count; i++) window->packed[next[window->bin[i]]++] = window->parts[i];
}

static Window window_open(int64_t length) {
    int64_t words = length / 64 + 1;
    return (Window){.length = length,
        .parts = memory_allocate(WINDOW_PARTS * sizeof(BinPart)),
        .packed = memory_allocate(WINDOW_PARTS * sizeof(BinPart)),
        .bin = memory_allocate(WINDOW_PARTS * sizeof(int32_t)),
        .below = memory_allocate(WINDOW_PARTS * sizeof(int32_t)),
        .room = memory_allocate(WINDOW_PARTS * sizeof(int64_t)),
        .first_part = memory_allocate((WINDOW_PARTS + 1) * sizeof(int64_t)),
        .rooms = {.top = memory_allocate((size_t)(length + 1) * sizeof(int32_t)),
            .bits = memory_allocate((size_t)words * sizeof(uint64_t)),
            .groups = memory_allocate((size_t)divide_up(words, 64) * sizeof(uint64_t)),
            .words = words}};
}

static void window_free(Window *window) {
    void *const blocks[] = {window->parts, window->packed, window->bin, window->below, window->room, window->first_part, window->rooms.top,
        window->rooms.bits, window->rooms.groups};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) free(blocks[i]);
}

/* -- Writing ------------------------------------------------------------------------------------------------------- */

typedef struct BinPlanner {
    Window window;
    File file, firsts; /* the plan under a temporary name; first parts of bins, in an unnamed file */
    XXH3_state_t *hash;
    BinFooter footer;
} BinPlanner;

static bool plan_append(BinPlanner *plan, const void *data, int64_t bytes, Error *error) {
    XXH3_64bits_update(plan->hash, data, (size_t)bytes);
    return file_append(&plan->file, data, bytes, error);
}

static bool write_window(BinPlanner *plan, Error *error) {
    Window *window = &plan->window;
    fit_parts(window);
    order_parts(window);
    for (int64_t b = 0; b < window->bins; b++) window->first_part[b] += plan->footer.parts;
    bool written = plan_append(plan, window->packed, window->count * (int64_t)sizeof(BinPart), error) &&
                   file_append(&plan->firsts, window->first_part, window->bins * (int64_t)sizeof(int64_t), error);
    plan->footer.bins += window->bins;
    plan->footer.parts += window->count;
    window->count = 0;
    return written;
}

static bool add_document(BinPlanner *plan, int64_t start, int64_t end, Error *error) {
    Window *window = &plan->window;
    for (int64_t count; start < end; start += count) {
        count = int_min(end - start, window->length);
        window->parts[window->count++] = (BinPart){start, count};
        plan->footer.inputs += count;
        if (window->count == WINDOW_PARTS && !write_window(plan, error)) return false;
    }
    return true;
}

/* Returns the tokens [*start, *end) of the next document or pair; *end is -1 after the last. */
static bool next_unit(DocumentCursor *cursor, int64_t *start, int64_t *end, Error *error) {
    int64_t middle;
    if (!document_cursor_next(cursor, start, end, error)) return false;
    return !cursor->set->pairs || *end < 0 || document_cursor_next(cursor, &middle, end, error);
}

static bool add_documents(BinPlanner *plan, const ShardSet *set, Error *error) {
    DocumentCursor cursor = {.set = set};
    int64_t start, end;
    Progress progress = progress_start("packing documents", "tokens", set->token_count);
    bool good = true;
    while ((good = next_unit(&cursor, &start, &end, error)) && end >= 0) {
        bool fits = !set->pairs || end - start <= plan->window.length;
        if (fits && !add_document(plan, start, end, error)) return false;
        progress_update(&progress, end);
    }
    progress_finish(&progress);
    return good && (plan->window.count == 0 || write_window(plan, error));
}

static bool append_firsts(BinPlanner *plan, Error *error) {
    SCOPED_FREE char *block = memory_allocate(COPY_BYTES);
    int64_t bytes = plan->footer.bins * (int64_t)sizeof(int64_t);
    for (int64_t at = 0; at < bytes; at += COPY_BYTES) {
        int64_t part = int_min(COPY_BYTES, bytes - at);
        if (!file_read_at(&plan->firsts, block, part, at, error) || !plan_append(plan, block, part, error)) return false;
    }
    return plan_append(plan, &plan->footer.parts, sizeof plan->footer.parts, error);
}

static bool append_footer(BinPlanner *plan, Error *error) {
    XXH3_64bits_update(plan->hash, &plan->footer, offsetof(BinFooter, checksum));
    plan->footer.checksum = XXH3_64bits_digest(plan->hash);
    return file_append(&plan->file, &plan->footer, sizeof plan->footer, error);
}

static bool make_plan(const char *path, const char *folder, const ShardSet *set, uint64_t content, int64_t length, Error *error) {
    BinPlanner plan = {.window = window_open(length), .hash = XXH3_createState()};
    plan.footer = (BinFooter){.magic = BINS_MAGIC, .length = length, .content = content};
    XXH3_64bits_reset(plan.hash);
    bool made = file_replace_begin(&plan.file, path, error) && file_open_unnamed(&plan.firsts, folder, error) &&
                add_documents(&plan, set, error) && append_firsts(&plan, error) && append_footer(&plan, error) &&
                file_replace_commit(&plan.file, error);
    file_close(&plan.file);
    file_close(&plan.firsts);
    window_free(&plan.window);
    XXH3_freeState(plan.hash);
    return made;
}

/* -- Reading ------------------------------------------------------------------------------------------------------- */

/* Maps the file if it is the complete plan of this content and length. The checksums decide,
 * because only this program writes data that matches them. */
static bool map_plan(BinPlan *plan, const char *path, uint64_t content, int64_t length) {
    Error ignored = {0};
    BinFooter footer;
    if (!file_map(&plan->map, path, &ignored)) return false;
    size_t size = plan->map.size;
    if (size < sizeof footer) return false;
    memcpy(&footer, plan->map.bytes + size - sizeof footer, sizeof footer);
    if (memcmp(footer.magic, BINS_MAGIC, sizeof footer.magic) != 0 || footer.content != content || footer.length != length) return false;
    if (XXH3_64bits(plan->map.bytes, size - sizeof footer.checksum) != footer.checksum) return false;
    plan->length = length;
    plan->bins = footer.bins;
    plan->inputs = footer.inputs;
    plan->part_count = footer.parts;
    plan->parts = (const BinPart *)plan->map.bytes;
    plan->first_part = (const int64_t *)(plan->parts + footer.parts);
    assert(size == (size_t)footer.parts * sizeof(BinPart) + (size_t)(footer.bins + 1) * sizeof(int64_t) + sizeof footer);
    return true;
}

/* Refuses a set of pairs that are all too long, because no pair is left. */
static bool check_bin_pairs(BinPlan *plan, const ShardSet *set, Error *error) {
    int64_t length = plan->length;
    if (!set->pairs || plan->bins > 0) return true;
    bin_plan_close(plan);
    return error_set(error, ERROR_DATA, "every preference pair of %s has more than data.length=%" PRId64 " tokens: increase data.length",
        set->path, length);
}

bool bin_plan_open(BinPlan *plan, const char *folder, const char *name, const ShardSet *set, int64_t length, Error *error) {
    SCOPED_FREE char *path = memory_format("%s/%s-%" PRId64 ".bins", folder, name, length);
    uint64_t content;
    *plan = (BinPlan){0};
    if (!shard_set_checksum(set, &content, error)) return false;
    if (map_plan(plan, path, content, length)) return check_bin_pairs(plan, set, error);
    bin_plan_close(plan);
    if (!file_make_folder(folder, error) || !make_plan(path, folder, set, content, length, error)) return error_recode(error, ERROR_DATA);
    if (map_plan(plan, path, content, length)) return check_bin_pairs(plan, set, error);
    bin_plan_close(plan);
    return error_set(error, ERROR_DATA, "%s does not read back as it was written: check the disk", path);
}

void bin_plan_close(BinPlan *plan) {
    file_unmap(&plan->map);
    *plan = (BinPlan){0};
}
