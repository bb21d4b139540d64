module worker

go 1.19

require github.com/polylock/polylock/clients/go v0.1.0

replace github.com/polylock/polylock/clients/go => ../../../clients/go
