/* A libFuzzer entry for token shards of other programs: the first byte names the format (llm.c or llmq, MDS raw and
 * compressed, the index.json of MDS), the rest is the file. It is refused, or read whole. Owns a file in the entries'
 * folder. */
#include "token_sets.h"

FUZZ(shard_file) {
    static const char *const names[] = {"tokens.bin", "shard.mds", "shard.mds.zstd", "index.json"};
    if (size < 1) return;
    const char *name = names[data[0] % 4];
    Error error = {0};
    ShardSet set;
    fuzz_file(name, data + 1, size - 1);
    SCOPED_FREE char *path = memory_format(data[0] % 4 == 3 ? "%s" : "%s/%s", fuzz_folder(), name);
    if (shard_set_open(&set, path, &error)) {
        require_whole(&set);
        shard_set_close(&set);
    } else {
        require_line(&error);
    }
}
