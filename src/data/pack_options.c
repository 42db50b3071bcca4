/* Refuses options of a packing that are invalid, or that would have no effect. */
#include <string.h>

#include "base/strings.h"
#include "data/packer_internal.h"
#include "store/s3.h"

bool pack_check_idle(const PackOptions *options, Error *error) {
    bool chat = pack_is_chat(options->format), field = options->field && strcmp(options->field, "text") != 0;
    bool judges = options->filter && filter_reads_text(options->filter);
    const char *idle = chat && field                                      ? "field"
                       : chat && judges                                   ? "a rule over texts"
                       : chat && *options->separator                      ? "separator"
                       : !chat && options->template && *options->template ? "template"
                       : !chat && options->turns != CHAT_TURNS_ALL        ? "turns"
                                                                          : NULL;
    return !idle || error_set(error, ERROR_USAGE, "%s is %s conversations: omit it, or set %s", idle, chat ? "not for" : "for",
                        chat ? "another format=" : "format=chat or preference");
}

/* Checks the settings beside a field of tokens. */
static bool check_tokens(const PackOptions *options, Error *error) {
    if (!options->tokens || !*options->tokens) return true;
    bool text = options->filter && filter_reads_text(options->filter);
    const char *idle = pack_is_chat(options->format)                      ? "format"
                       : options->field && strcmp(options->field, "text") ? "field"
                       : *options->separator                              ? "separator"
                       : options->dedup == PACK_DEDUP_NEAR                ? "dedup=near"
                       : text                                             ? "a rule over texts"
                                                                          : NULL;
    if (idle) return error_set(error, ERROR_USAGE, "%s is for text, but tokens=%s has token ids: omit one of them", idle, options->tokens);
    return (options->tokenizer && *options->tokenizer) ||
           error_set(error, ERROR_USAGE, "tokens=%s has token ids: set tokenizer= to the tokenizer that made them", options->tokens);
}

bool pack_check_options(const PackOptions *options, Error *error) {
    if (options->format != PACK_AUTO && !pack_check_idle(options, error)) return false;
    if (!(options->valid_fraction >= 0 && options->valid_fraction <= 0.5))
        return error_set(error, ERROR_USAGE, "valid=%g must be 0 to 0.5, the validation part of each file", options->valid_fraction);
    if (options->format == PACK_TEXT && options->filter && filter_field_count(options->filter) > 0)
        return error_set(error, ERROR_USAGE, "a rule reads the field %s, but format=text has no fields: omit one of them",
            filter_field(options->filter, 0));
    if (options->against && *options->against && options->dedup == PACK_DEDUP_NONE)
        return error_set(error, ERROR_USAGE, "against compares documents with those of other packings: set dedup=exact or near too");
    if (options->restore && *options->restore && options->dedup == PACK_DEDUP_NONE)
        return error_set(error, ERROR_USAGE, "restore compares documents again: set dedup=exact or near too, as in %s", options->restore);
    if (!check_tokens(options, error)) return false;
    if (strpbrk(options->separator, "\r\n"))
        return error_set(error, ERROR_USAGE, "separator contains a line end but must be the text of one line: remove the line end");
    for (const char *const *input = options->inputs; *input; input++)
        if (!**input) return error_set(error, ERROR_USAGE, "the name of an INPUT is empty: give a path");
    if (!*options->output) return error_set(error, ERROR_USAGE, "the name of OUTPUT is empty: give a path");
    if (options->staging && *options->staging && !starts_with(options->output, S3_SCHEME))
        return error_set(
            error, ERROR_USAGE, "staging=%s is for OUTPUT in a bucket, but %s is local: omit it", options->staging, options->output);
    if (starts_with(options->output, S3_SCHEME) && options->shard_tokens <= 0)
        return error_set(error, ERROR_USAGE,
            "OUTPUT %s is in a bucket, which needs a folder of shards: set shard_tokens=, the tokens of a shard, such as 100M",
            options->output);
    return true;
}
