/* A libFuzzer entry for token shards: the first two bytes are the size of the index, the index follows, the rest are
 * the tokens. Both are refused, or every document lies inside the tokens and every token can be read. Owns two files in
 * the entries' folder. */
#include "base/memory.h"
#include "data/data.h"
#include "fuzz.h"

static void require_inside_tokens(Shard *shard) {
    Error error = {0};
    int64_t before = 0;
    for (int64_t i = 0; i < shard->document_count; i++) {
        require(shard->document_end[i] >= before && shard->document_end[i] <= shard->token_count);
        before = shard->document_end[i];
    }
    require(before == shard->token_count && shard->token_count > 0);
    bool verified = shard_verify(shard, &error);
    if (!verified) require_line(&error);
    for (int64_t i = 0; i < shard->token_count; i++) require(!verified || shard_token(shard, i) >= 0);
}

FUZZ(shard) {
    if (size < 2) return;
    size_t most = size - 2, given = data[0] + 256u * data[1], index = given < most ? given : most;
    Error error = {0};
    Shard shard;
    fuzz_file("shard.bin", data + 2 + index, most - index);
    fuzz_file("shard.idx", data + 2, index);
    char *prefix = memory_format("%s/shard", fuzz_folder());
    if (shard_map(&shard, prefix, &error)) {
        require_inside_tokens(&shard);
        shard_close(&shard);
    } else {
        require_line(&error);
    }
    free(prefix);
}
