/* The struct Chat, for the files that create and use it. */
#pragma once

#include <time.h>

#include "chat/chat.h"

struct Chat {
    ChatTemplate *plain, *tools; /* tools: for conversations with tools, or NULL */
    char *source;                /* source of `plain`; NULL without one */
    json_t *tokens;              /* variables of templates: bos_token and so on */
    const Tokenizer *tokenizer;
    ChatTurns turns;
    bool special;
    int32_t end_token;
    uint64_t identity;
    time_t now;
};
