/* A libnvidia-ml.so.1 that answers from a file: "KEY VALUE" a line, read at start and whenever scripted_reload() is called.

   KEY is DEVICE.NAME (0.power 412000), count, start, or xid; "0.power! 15" makes the call answer error 15. Fields are
   0.field82, GPM metrics 0.gpm3, clocks 0.clock1 and 0.maxclock1. What is not scripted is not supported. Struct layouts
   are those of nvml.h. The file's path stands in NVML_SCRIPT. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, UNSUPPORTED = 3, SMALL = 7, TIMED_OUT = 10, VERSION = 25 };
enum { DEVICES = 16, FIELDS = 300, METRICS = 480, NAMES = 64 };

typedef struct { int known, error; double value; } answer;
typedef struct { unsigned index; answer named[NAMES], field[FIELDS], gpm[METRICS]; } device;
typedef struct { uint32_t id, scope; int64_t at, latency; int32_t type, error; union { double d; uint64_t u; } value; } field_value;
typedef struct { uint32_t id; int32_t error; double value; void *info[3]; } metric;
typedef struct { uint32_t version, count; int *older, *newer; metric metrics[]; } metrics;
typedef struct { uint32_t version; uint64_t total, reserved, free, used; } memory_v2;
typedef struct { uint32_t pid; uint64_t used; uint32_t gi, ci; } process;
typedef struct { device *of; uint64_t type, data; uint32_t gi, ci; } event;

static const char *names[] = {
    "power", "limit", "energy", "temperature", "util", "memutil", "total", "used", "free", "reserved", "width", "arch",
    "clock0", "clock1", "clock2", "clock3", "maxclock0", "maxclock1", "maxclock2", "maxclock3", "reasons", "pid", "pidmem",
    "ecc0", "ecc1", "rows", "gpm", "lost", 0};
static device devices[DEVICES];
static int count, start, started, taken;
static long xid, xid_seen;

static int place(const char *name) {
    for (int i = 0; names[i]; i++) if (!strcmp(names[i], name)) return i;
    return -1;
}

void scripted_reload(void) {
    FILE *script = fopen(getenv("NVML_SCRIPT") ? getenv("NVML_SCRIPT") : "", "r");
    char key[64];
    double value;
    memset(devices, 0, sizeof devices);
    count = start = 0;
    for (unsigned i = 0; i < DEVICES; i++) devices[i].index = i;
    while (script && fscanf(script, "%63s %lf", key, &value) == 2) {
        unsigned d, n;
        char name[64], *bang = strchr(key, '!');
        if (bang) *bang = 0;
        answer one = {1, bang ? (int)value : 0, value}, *where = 0;
        if (!strcmp(key, "count")) count = (int)value;
        else if (!strcmp(key, "start")) start = (int)value;
        else if (!strcmp(key, "xid")) xid = (long)value;
        else if (sscanf(key, "%u.field%u", &d, &n) == 2 && d < DEVICES && n < FIELDS) where = &devices[d].field[n];
        else if (sscanf(key, "%u.gpm%u", &d, &n) == 2 && d < DEVICES && n < METRICS) where = &devices[d].gpm[n];
        else if (sscanf(key, "%u.%63s", &d, name) == 2 && d < DEVICES && place(name) >= 0)
            where = &devices[d].named[place(name)];
        if (where) *where = one;
    }
    if (script) fclose(script);
}

static int told(device *d, const char *name, double *value) {
    static int lost;
    if (!lost) lost = place("lost");
    if (!started) return UNINITIALIZED;
    if (!d) return INVALID;
    if (d->named[lost].known) return (int)d->named[lost].value;
    answer *one = &d->named[place(name)];
    if (!one->known) return UNSUPPORTED;
    *value = one->value;
    return one->error;
}
#define U32(symbol, name) int symbol(device *d, uint32_t *out) { double v = 0; int r = told(d, name, &v); if (!r) *out = (uint32_t)v; return r; }
#define U64(symbol, name) int symbol(device *d, uint64_t *out) { double v = 0; int r = told(d, name, &v); if (!r) *out = (uint64_t)v; return r; }

int nvmlInitWithFlags(unsigned flags) { (void)flags; scripted_reload(); if (!start) started = 1; return start; }
int nvmlShutdown(void) { started = 0; return OK; }
const char *nvmlErrorString(int code) { (void)code; return "scripted"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "570.0"); return OK; }
int nvmlDeviceGetCount_v2(uint32_t *out) { *out = count; return started ? OK : UNINITIALIZED; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, device **out) { *out = devices + i; return i < (unsigned)count ? OK : INVALID; }
int nvmlDeviceGetName(device *d, char *text, unsigned size) { (void)d; snprintf(text, size, "NVIDIA H100 80GB HBM3"); return OK; }
int nvmlDeviceGetUUID(device *d, char *text, unsigned size) {
    double v;
    int r = told(d, "lost", &v);
    if (r != UNSUPPORTED) return r;
    snprintf(text, size, "GPU-%u", d->index);
    return OK;
}
U32(nvmlDeviceGetArchitecture, "arch")
U32(nvmlDeviceGetPowerUsage, "power")
U32(nvmlDeviceGetEnforcedPowerLimit, "limit")
U64(nvmlDeviceGetTotalEnergyConsumption, "energy")
U32(nvmlDeviceGetMemoryBusWidth, "width")
U64(nvmlDeviceGetCurrentClocksEventReasons, "reasons")
int nvmlDeviceGetTemperature(device *d, int sensor, uint32_t *out) { (void)sensor; double v = 0; int r = told(d, "temperature", &v); *out = v; return r; }
static int clock_of(device *d, const char *kind, int which, uint32_t *out) {
    char name[16];
    double v = 0;
    snprintf(name, sizeof name, "%s%d", kind, which & 3);
    int r = told(d, name, &v);
    *out = (uint32_t)v;
    return r;
}
int nvmlDeviceGetClockInfo(device *d, int which, uint32_t *out) { return clock_of(d, "clock", which, out); }
int nvmlDeviceGetMaxClockInfo(device *d, int which, uint32_t *out) { return clock_of(d, "maxclock", which, out); }
int nvmlDeviceGetUtilizationRates(device *d, uint32_t out[2]) {
    double v = 0, w = 0;
    int r = told(d, "util", &v) | told(d, "memutil", &w);
    out[0] = (uint32_t)v, out[1] = (uint32_t)w;
    return r;
}
int nvmlDeviceGetMemoryInfo_v2(device *d, memory_v2 *out) {
    double v = 0;
    int r = told(d, "reserved", &v);
    if (r) return r;
    if (out->version != 0x02000028) return VERSION;
    out->reserved = (uint64_t)v;
    told(d, "total", &v), out->total = (uint64_t)v;
    told(d, "free", &v), out->free = (uint64_t)v;
    told(d, "used", &v), out->used = (uint64_t)v;
    return OK;
}
int nvmlDeviceGetMemoryInfo(device *d, uint64_t out[3]) {
    double v = 0;
    int r = told(d, "total", &v);
    out[0] = (uint64_t)v;
    told(d, "free", &v), out[1] = (uint64_t)v;
    told(d, "used", &v), out[2] = (uint64_t)v;
    return r;
}
int nvmlDeviceGetTotalEccErrors(device *d, int kind, int counter, uint64_t *out) {
    (void)counter;
    double v = 0;
    int r = told(d, kind ? "ecc1" : "ecc0", &v);
    *out = (uint64_t)v;
    return r;
}
int nvmlDeviceGetFieldValues(device *d, int n, field_value *values) {
    double v;
    int r = told(d, "lost", &v);
    if (r != UNSUPPORTED) return r;
    for (int i = 0; i < n; i++) {
        answer *one = values[i].id < FIELDS ? &d->field[values[i].id] : 0;
        values[i].error = one && one->known ? one->error : UNSUPPORTED;
        values[i].type = 3;
        values[i].value.u = one ? (uint64_t)one->value : 0;
    }
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(device *d, uint32_t *n, process *out) {
    double pid = 0, used = 0;
    int r = told(d, "pid", &pid);
    if (r) return r;
    if (!out || *n < 1) { *n = 1; return SMALL; }
    told(d, "pidmem", &used);
    *n = 1, out[0].pid = (uint32_t)pid, out[0].used = (uint64_t)used, out[0].gi = out[0].ci = 0xFFFFFFFF;
    return OK;
}
int nvmlEventSetCreate(void **out) { static int set; *out = &set; return OK; }
int nvmlEventSetFree(void *set) { (void)set; return OK; }
int nvmlDeviceRegisterEvents(device *d, uint64_t mask, void *set) { (void)d, (void)mask, (void)set; return OK; }
int nvmlEventSetWait_v2(void *set, event *out, uint32_t ms) {
    (void)set;
    for (uint32_t waited = 0; waited < ms; waited += 5) {
        if (!started) return UNINITIALIZED;
        if (xid != xid_seen) {
            xid_seen = xid;
            out->of = devices, out->type = 8, out->data = (uint64_t)xid, out->gi = out->ci = 0xFFFFFFFF;
            return OK;
        }
        usleep(5000);
    }
    return TIMED_OUT;
}
int nvmlGpmQueryDeviceSupport(device *d, uint32_t out[2]) { double v = 0; int r = told(d, "gpm", &v); out[1] = v != 0; return r == UNSUPPORTED ? OK : r; }
int nvmlGpmSampleAlloc(int **out) { return (*out = calloc(4, sizeof(int))) ? OK : 20; }
int nvmlGpmSampleFree(int *sample) { free(sample); return OK; }
int nvmlGpmSampleGet(device *d, int *sample) { if (!started) return UNINITIALIZED; sample[0] = ++taken, sample[1] = (int)d->index; return OK; }
int nvmlGpmMetricsGet(metrics *m) {
    if (m->version != 1) return VERSION;
    if (m->older == m->newer || m->older[0] >= m->newer[0]) return INVALID;
    for (uint32_t i = 0; i < m->count; i++) {
        answer *one = m->metrics[i].id < METRICS ? &devices[m->newer[1]].gpm[m->metrics[i].id] : 0;
        m->metrics[i].error = one && one->known ? one->error : UNSUPPORTED;
        m->metrics[i].value = one ? one->value : NAN;
    }
    return OK;
}
/* What a call costs on this side of the binding, in nanoseconds. */
double scripted_own_ns(int calls) {
    struct timespec a, b;
    uint32_t out;
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (int i = 0; i < calls; i++) nvmlDeviceGetPowerUsage(devices, &out);
    clock_gettime(CLOCK_MONOTONIC, &b);
    return ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / calls;
}
