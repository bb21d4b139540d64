module github.com/polylock/polylock/clients/go

go 1.19
