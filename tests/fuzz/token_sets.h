/* What every reader of token shards owes to fuzzing: a set that opens is read whole, or refused by name. */
#pragma once

#include "base/memory.h"
#include "base/scope.h"
#include "data/shard_set.h"
#include "fuzz.h"

/* Reading is refused by name, or gives what a walk over the documents gives. */
static inline void require_whole(ShardSet *set) {
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
    int64_t trained = 0, counted = 0;
    for (int64_t i = 0; i < set->token_count && verified; i++) {
        require(tokens[i] >= 0 && tokens[i] <= set->max_token && (ends[i] & TOKEN_ENDS) == marks[i]);
        trained += !(ends[i] & TOKEN_UNTRAINED);
    }
    bool known = shard_set_trained(set, &counted, &error);
    if (!known) require_line(&error);
    require(!verified || (known && counted == trained));
}
