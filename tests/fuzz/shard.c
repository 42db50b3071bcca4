/* A libFuzzer entry for token shards: the first two bytes are the size of the index, the index follows, the rest are
 * the tokens. Both are refused, or every document lies inside the tokens and every token can be read. Owns two files in
 * the entries' folder. */
#include "token_sets.h"

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
        require(!set.pairs || (set.masked && set.document_count % 2 == 0));
        shard_set_close(&set);
    } else {
        require_line(&error);
    }
}
