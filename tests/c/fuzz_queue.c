/* Fuzzes a queue: random operations, on a disk that fills up, compared with the plain model. */
#include "fuzz.h"
#include "queue_model.h"

const char *const fuzz_name = "fuzz_queue";

void fuzz_once(random_source *source)
{
    static queue_model model;
    FUZZ_CHECK(queue_model_run(&model, source, 100 + random_below(source, 1500), (int)random_below(source, 2)) == 0);
}
