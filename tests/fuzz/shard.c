/* A libFuzzer entry for token shards: the first two bytes are the size of the index, the index follows, the rest are
 * the tokens. Both are refused, or every document lies inside the tokens and every token can be read. Owns two files in
 * the entries' folder. */
#include "base/memory.h"
#include "base/scope.h"
#include "data/data.h"
#include "fuzz.h"

/* Reading is refused by name, or gives what a walk over the documents gives. */
static void require_whole(ShardSet *set) {
    Error error = {0};
    DocumentCursor cursor = {.set = set};
    SCOPED_FREE int32_t *tokens = memory_allocate((size_t)set->token_count * sizeof *tokens);
    SCOPED_FREE uint8_t *ends = memory_allocate((size_t)set->token_count), *marks = memory_allocate((size_t)set->token_count);
    bool verified = shard_set_verify(set, &error), read, walked = true;
    if (!verified) require_line(&error);
    require(set->token_count > 0);
    error = (Error){0};
    read = shard_set_read(set, 0, set->token_count, (int64_t)INT32_MAX + 1, tokens, ends, &error);
    if (!read) require_line(&error);
    for (int64_t start = 0, end = 0; walked && end >= 0;) {
        int64_t before = cursor.token;
        error = (Error){0};
        walked = document_cursor_next(&cursor, &start, &end, &error);
        if (!walked) require_line(&error);
        if (!walked || end < 0) continue;
        require(start == before && start <= end && end <= set->token_count);
        if (end > start) marks[end - 1] = 1;
    }
    require(!verified || (read && walked));
    for (int64_t i = 0; i < set->token_count && verified; i++)
        require(tokens[i] >= 0 && tokens[i] <= set->max_token && ends[i] == marks[i]);
}

FUZZ(shard) {
    if (size < 2) return;
    size_t most = size - 2, given = data[0] + 256u * data[1], index = given < most ? given : most;
    Error error = {0};
    ShardSet set;
    fuzz_file("shard.bin", data + 2 + index, most - index);
    fuzz_file("shard.idx", data + 2, index);
    SCOPED_FREE char *prefix = memory_format("%s/shard", fuzz_folder());
    if (shard_set_open(&set, prefix, &error)) {
        require_whole(&set);
        shard_set_close(&set);
    } else {
        require_line(&error);
    }
}
