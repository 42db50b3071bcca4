/* Owns the thread, the sensors and the newest sample until sampler_take returns it. */
#include "run/sampler.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/thread.h"

struct Sampler {
    double every;
    Sensors *sensors;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* Protected by the lock: */
    SensorReading reading;
    bool waits; /* the reading was not taken */
    bool closing;
};

/* The caller holds the lock; sampler_take waits for it. */
static void sample(Sampler *sampler) {
    SensorReading next;
    sensors_read(sampler->sensors, &next);
    if (sampler->waits && isfinite(sampler->reading.joules))
        next.joules = sampler->reading.joules + (isfinite(next.joules) ? next.joules : 0);
    sampler->reading = next;
    sampler->waits = true;
}

static void *take_samples(void *context) {
    Sampler *sampler = context;
    pthread_mutex_lock(&sampler->lock);
    for (double due = log_seconds() + sampler->every; !sampler->closing;) {
        if (thread_wait_until(&sampler->changed, &sampler->lock, due)) continue;
        sample(sampler);
        due = log_seconds() + sampler->every;
    }
    pthread_mutex_unlock(&sampler->lock);
    return NULL;
}

Sampler *sampler_open(double every) {
    if (!(every > 0)) return NULL;
    Sampler *sampler = memory_allocate(sizeof *sampler);
    *sampler = (Sampler){.every = every, .sensors = sensors_open("")};
    pthread_mutex_init(&sampler->lock, NULL);
    pthread_cond_init(&sampler->changed, NULL);
    if (thread_start(&sampler->thread, take_samples, sampler) == 0) return sampler;
    log_warn("metrics.system: cannot start a thread, so the machine is not sampled: raise the limit on processes (ulimit -u)");
    sensors_close(sampler->sensors);
    free(sampler);
    return NULL;
}

bool sampler_take(Sampler *sampler, bool now, SensorReading *reading) {
    if (!sampler || (!now && pthread_mutex_trylock(&sampler->lock) != 0)) return false;
    if (now) {
        pthread_mutex_lock(&sampler->lock);
        sample(sampler);
    }
    bool waits = sampler->waits;
    if (waits) *reading = sampler->reading;
    sampler->waits = false;
    pthread_mutex_unlock(&sampler->lock);
    return waits;
}

void sampler_close(Sampler *sampler) {
    if (!sampler) return;
    pthread_mutex_lock(&sampler->lock);
    sampler->closing = true;
    pthread_cond_signal(&sampler->changed);
    pthread_mutex_unlock(&sampler->lock);
    pthread_join(sampler->thread, NULL);
    pthread_cond_destroy(&sampler->changed);
    pthread_mutex_destroy(&sampler->lock);
    sensors_close(sampler->sensors);
    free(sampler);
}
