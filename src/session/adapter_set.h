/* The unmerged adapters of an engine (EngineSizes.adapters). Requests choose an adapter by its name. */
#pragma once

#include "session/weights.h"
#include "token/tokenizer.h"

typedef struct NamedAdapter {
    char *name;
    char *source;  /* RUN, RUN@STEP, or FOLDER@MODEL for a PEFT folder */
    Config config; /* of the run; or of MODEL, with lora.* from the folder */
    OptionStrings strings;
    char *targets; /* of a folder */
} NamedAdapter;

/* Zero-initialize, close with adapter_set_close. */
typedef struct NamedAdapters {
    NamedAdapter *items;
    int count;
    LoraConfig *loras; /* of the items, for the engine */
    TokenIds *ends;    /* tokens that end a text, by EngineRequest.adapter: the model's, and those of an item: [1 + count] */
} NamedAdapters;

/* The model that adapters are for; borrowed, and outlives them. */
typedef struct AdapterBase {
    const char *folder;
    const Config *config;
    const Tokenizer *tokenizer; /* NULL: bytes, or prompts are token ids */
    const TokenIds *ends;       /* tokens that end a text */
} AdapterBase;

/* Reads an option adapters=, a JSON object of names and sources. An empty option: none. ERROR_USAGE and
 * ERROR_CHECKPOINT name an adapter of another model, or one that generation cannot use beside others. */
bool adapter_set_open(NamedAdapters *adapters, const char *option, const AdapterBase *base, Error *error);
void adapter_set_close(NamedAdapters *adapters);
AdapterSet adapter_set(const NamedAdapters *adapters);
/* Returns the EngineRequest.adapter of a name; 0: there is none. */
int adapter_set_find(const NamedAdapters *adapters, const char *name);
/* ERROR_USAGE if the rows of a request that uses an adapter would not have the bits of its training
 * (exact=true): on a GPU, and with a factor that rounds. */
bool adapter_set_check_exact(const NamedAdapters *adapters, const Device *device, Error *error);

/* Fills the engine's tables, of a model of `config`. ERROR_CHECKPOINT. */
bool adapter_set_load(const NamedAdapters *adapters, Engine *engine, EnginePlace place, const ModelConfig *config, Error *error);
/* One adapter: adapter `index` of the engine, and its whole parameters. */
typedef struct EngineAdapter {
    const LoraConfig *lora;
    const HostModel *whole;
    int index;
} EngineAdapter;
/* Fills its part of the tables. */
bool adapter_set_put(Engine *engine, EnginePlace place, const ModelConfig *config, const EngineAdapter *adapter, Error *error);
