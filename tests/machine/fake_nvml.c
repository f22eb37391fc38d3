/* libnvidia-ml.so.1 for tests. FAKE_NVML names a file of words and numbers: "init N", "handle N", "whole N", "newer N"
   "read N", "power N", "utilization N" and "clock N" are errors to return; "temperatures A B C" are the readings in their order, of which the last stays, and
   1000 + N among them is error N; "GPU-bbbb N" is what one GPU always says. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned version, sensor; int temperature; } reading_t;
static char gpus[3][16] = {"GPU-aaaa", "GPU-bbbb", "GPU-cccc"}, slice[16] = "MIG-dddd";
static int readings = 0;

static int control(const char *word, int nth, int otherwise) {
    FILE *file = fopen(getenv("FAKE_NVML"), "r");
    char found[64];
    int value = otherwise, wanted = 0;
    while (file && fscanf(file, "%63s", found) == 1) {
        if (isalpha(found[0])) wanted = !strcmp(found, word);
        else if (wanted && nth-- >= 0) value = atoi(found);
    }
    if (file) fclose(file);
    return value;
}

int nvmlInitWithFlags(unsigned flags) { readings = 0; return control("init", 0, 0); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { static char text[32]; snprintf(text, 32, "error %d", code); return text; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = gpus[index < 3 ? index : 0];
    return index < 3 ? control("handle", 0, 0) : 2;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    *device = NULL;
    for (int i = 0; i < 3; i++) if (!strcmp(uuid, gpus[i])) *device = gpus[i];
    if (!strcmp(uuid, slice)) *device = slice;
    return *device ? control("handle", 0, 0) : 6;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *mig, void **device) {
    *device = gpus[2];
    return mig == slice ? control("whole", 0, 0) : 2;
}

static int measure(void *device, int *degrees) {
    int error = control("read", 0, 0);
    if (!error) *degrees = control((char *)device, 0, control("temperatures", readings++, 30));
    return error || *degrees < 1000 ? error : *degrees - 1000;
}

int nvmlDeviceGetTemperatureV(void *device, reading_t *reading) {
    int error = control("newer", 0, 0);
    return error ? error : measure(device, &reading->temperature);
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *degrees) { return measure(device, (int *)degrees); }

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
    *milliwatts = 312500;
    return control("power", 0, 0);
}

int nvmlDeviceGetUtilizationRates(void *device, unsigned rates[2]) {
    rates[0] = 97, rates[1] = 40;
    return control("utilization", 0, 0);
}

int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *mhz) {
    *mhz = kind == 1 ? 1980 : 2619; /* 1 = NVML_CLOCK_SM */
    return control("clock", 0, 0);
}
