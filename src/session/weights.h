/* The weights of a source (run/source.h), in host memory, in arenas of a device, or in a session. */
#pragma once

#include "formats/hf.h"
#include "engine/engine.h"
#include "infer/generate.h"
#include "session/session.h"

/* Fills `master`, host memory of the size of the MASTER arena of `graph`, with the weights. `graph`
 * is built from config->model; its precision may differ from the source's. `*step` (`step` may be NULL)
 * receives the step of a run's checkpoint, 0 for other folders. ERROR_CHECKPOINT. */
bool weights_load(const char *folder, const Config *config, const Graph *graph, void *master, int64_t *step, Error *error);
/* Copies the trained parameters from the MASTER arena of a whole model to the MASTER arena of a
 * graph. The graph may have another precision and be sharded. Both arenas are host memory. */
void weights_convert(const Graph *to, void *target, const Graph *from, const void *source);
/* The source of whole parameters: a model folder's reader, or a MASTER arena of the host. */
typedef struct WeightSource {
    const HfReader *reader; /* opened for `graph`; or NULL */
    const Graph *graph;     /* of the whole model */
    const char *master;
} WeightSource;
/* Fills device memory with an interval of a parameter of `graph`, which may be cut. The values are
 * in bf16 with `as_bf16`, else in the parameter's state dtype, which must be the source's. */
void weights_take(const WeightSource *source, const Graph *graph, ParameterInterval elements, bool as_bf16, Device *device, void *to);
/* Fills this rank's part of the trained parameters that the source has and does not freeze. The
 * caller then calls session_spread_weights. */
void weights_take_shards(Session *session, const WeightSource *source);
/* Opens a generator (generator_create) with the newest weights of a run or model folder, whose
 * configuration is `config`. */
Generator *weights_open_generator(
    const char *folder, const Mesh *mesh, const Config *config, Precision precision, Device *device, bool cache, Error *error);
/* Opens an engine (engine_create) with these weights. */
Engine *weights_open_engine(const char *folder, const Config *config, EnginePlace place, EngineSizes sizes, Error *error);
/* Fills both weight arenas of a planned program on its device. Model folders are read parameter by
 * parameter. */
bool weights_load_program(const char *folder, const Config *config, Executor *executor, Error *error);

/* The parameters of a model in host memory, with the offsets of the graph that describes them.
 * Zero-initialize. */
typedef struct HostModel {
    Model model;
    char *master; /* a MASTER arena, zeroed */
} HostModel;
/* Opens the model, with adapters if `lora` (may be NULL) has a rank. ERROR_MEMORY. */
bool host_model_open(HostModel *host, const ModelConfig *config, const LoraConfig *lora, Precision precision, Error *error);
void host_model_close(HostModel *host);
